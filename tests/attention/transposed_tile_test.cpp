// SPDX-License-Identifier: Apache-2.0
// The transposed dQ product of one warpgroup, from dS in registers to rows of dQ. The layouts of stmatrix, of swizzled
// operands and of the products follow the PTX specification. Values are small integers, so sums are exact.
#include "attention/tile/transposed_tile.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

namespace attune {
namespace {

constexpr int kQueries = 80, kKeys = 128, kColumns = 128, kPanelK = kKeys * 128;
constexpr TransposedTile kTile{kQueries};

// Shared memory of 16-bit numbers, addressed by byte, with the 128-byte swizzle of the hardware.
struct Shared {
  std::vector<int16_t> data;
  std::vector<int> writes;
  explicit Shared(int bytes) : data(size_t(bytes) / 2), writes(size_t(bytes) / 2) {}
  static int swizzled(int address) { return address ^ (address >> 7 & 7) << 4; }
  void write(int address, int value) {
    data.at(size_t(address) / 2) = int16_t(value), ++writes.at(size_t(address) / 2);
  }
  int read(int address) const { return data.at(size_t(address) / 2); }
};

int weight(int key, int query) { return (key * 7 + query * 5 + key * query) % 11 - 5; }
int number(int key, int column) { return (key * 3 + column * 13 + key * column) % 9 - 4; }

// stmatrix.x4.trans by one warp. Register j holds the pairs of matrix j; lane r * 4 + c / 2 holds row r, columns c and
// c + 1. Column c is stored at the address given by lane 8 j + c.
template <class Address, class Pair>
void store_transposed(Shared& to, Address address, Pair pair) {
  for (int j = 0; j < 4; ++j)
    for (int c = 0; c < 8; ++c)
      for (int r = 0; r < 8; ++r) to.write(address(8 * j + c) + 2 * r, pair(r * 4 + c / 2, j)[size_t(c) % 2]);
}

Shared stored_ds() {
  Shared ds(2 * kTile.panel());
  for (int group = 0; group < 2; ++group)
    for (int warp = 0; warp < 4; ++warp)
      for (int n = 0; n < kQueries / 16; ++n)
        store_transposed(
            ds, [&](int lane) { return kTile.store(group, warp, lane, n); },
            [&](int lane, int j) {  // register 4 n + j of the lane: two adjacent sums of S^T
              const int first = 2 * (4 * n + j), key = group * 64 + warp * 16 + lane / 4 + first / 2 % 2 * 8;
              const int query = first / 4 * 8 + lane % 4 * 2;
              return std::array{weight(key, query), weight(key, query + 1)};
            });
  return ds;
}

// K as TMA stores it: panels of 64 columns.
Shared loaded_k() {
  Shared k(2 * kPanelK);
  for (int key = 0; key < kKeys; ++key)
    for (int column = 0; column < kColumns; ++column)
      k.write(Shared::swizzled(column / 64 * kPanelK + key * 128 + column % 64 * 2), number(key, column));
  return k;
}

// One m64n80k16 product. a: [16 rows of k, 64 contiguous]; b: [80 rows, k contiguous]; eight rows per 1024 bytes.
void multiply(std::vector<int>& sums, const Shared& a, int at_a, const Shared& b, int at_b) {
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < kQueries; ++column)
      for (int k = 0; k < 16; ++k)
        sums[size_t(row * kQueries + column)] +=
            a.read(Shared::swizzled(at_a + k / 8 * 1024 + k % 8 * 128 + row * 2)) *
            b.read(Shared::swizzled(at_b + column / 8 * 1024 + column % 8 * 128 + k * 2));
}

// A dQ tile in memory after the warps added to it.
std::vector<int> added_sums(const Shared& ds, const Shared& k) {
  std::vector<int> memory(size_t(kQueries) * kColumns, INT32_MIN);
  for (int group = 0; group < 2; ++group) {
    std::vector<int> sums(64 * kQueries);
    for (int n = 0; n < kKeys / 16; ++n)
      multiply(sums, k, group * kPanelK + n * 16 * 128, ds, kTile.keys(n));
    for (int warp = 0; warp < 4; ++warp)
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < kQueries / 2; ++i) {  // register i of the lane
          const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
          // Offset among the warp's values, which leave in one bulk copy.
          const int staged = i / 4 * 128 + lane * 4 + i % 4;
          int& to = memory.at(size_t(kTile.columns(group * 4 + warp) + staged));
          EXPECT_EQ(to, INT32_MIN) << "written twice";
          to = sums[size_t(row * kQueries + column)];
        }
  }
  return memory;
}

TEST(TransposedTile, every_number_of_ds_has_one_place) {
  const Shared ds = stored_ds();
  for (const int count : ds.writes) ASSERT_EQ(count, 1);
}

TEST(TransposedTile, a_store_of_ds_meets_every_bank_once) {
  for (int warp = 0; warp < 4; ++warp)
    for (int n = 0; n < kQueries / 16; ++n)
      for (int j = 0; j < 4; ++j) {
        std::set<int> banks;
        for (int c = 0; c < 8; ++c) banks.insert(kTile.store(1, warp, 8 * j + c, n) % 128 / 16);
        ASSERT_EQ(banks.size(), 8u);
      }
}

TEST(TransposedTile, sums_are_read_back_as_rows_of_dq) {
  const std::vector<int> memory = added_sums(stored_ds(), loaded_k());
  for (int first = 0; first < kQueries; first += 8)
    for (int column0 = 0; column0 < kColumns; column0 += TransposedTile::kColumns)
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) {
          const int query = first + TransposedTile::query(lane, e), column = column0 + TransposedTile::column(lane, e);
          int dq = 0;
          for (int key = 0; key < kKeys; ++key) dq += weight(key, query) * number(key, column);
          ASSERT_EQ(memory.at(size_t(kTile.fragment(first, column0) + lane * 4 + e)), dq) << query << ", " << column;
        }
}

}  // namespace
}  // namespace attune
