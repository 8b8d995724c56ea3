// Kernels of forward.sm90.h, thread by thread on a CPU: against attention in double, at many paces of their warps and
// copies. Those of plain steps, and those of forward.sm90.band.h: d128 for windows, and d256.
#include <gtest/gtest.h>

#include "tests/emulated/gpu.h"

#include "attention/forward.sm90.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's name for shared memory: its address is 0 (barrier.h)

namespace {

template <class T>
using Plain = ForwardShape<T, 128, 128, 128, 2, 2, 2, false, false, false>;
template <class T>
using Narrow = ForwardShape<T, 64, 64, 128, 2, 2, 2, false, true, false>;
template <class T>
using InPlace = ForwardShape<T, 64, 64, 128, 3, 2, 2, true, true, false>;
template <class T>
using OfWindows = ForwardShape<T, 128, 128, 64, 3, 2, 4, false, false, false, Lists::none, false, true>;
template <class T>
using Heads256 = ForwardShape<T, 256, 256, 64, 2, 1, 2, false, false, false, Lists::none, false, true>;

struct Asked {
  int heads, heads_per_key, rows, keys, left, right;
  int blocks;  // of the launch
  bool bhsd = false, sinks = false;
  int larger = 1;      // q, so that maxima move
  bool fixed = false;  // tiles that are all alike, without a counter
};
constexpr int kAll = 1 << 28;  // a side without end

template <class C>
struct Call {
  using T = typename C::T;
  static constexpr int kDim = C::kDim;
  const Asked w;
  std::mt19937 random;
  std::vector<T> q, k, v, out;
  std::vector<float> lse, sinks;
  unsigned long long counters[2] = {0x1234567890, 77};  // of any content

  static size_t size(int heads, int rows) { return size_t(heads) * size_t(rows) * kDim; }
  size_t place(int head, int row, int heads, int rows) const {
    return (w.bhsd ? size_t(head) * size_t(rows) + size_t(row) : size_t(row) * size_t(heads) + size_t(head)) * kDim;
  }
  int heads_kv() const { return w.heads / w.heads_per_key; }

  Call(const Asked& asked, unsigned seed)
      : w(asked), random(seed), q(size(w.heads, w.rows)), k(size(heads_kv(), w.keys)), v(k.size()),
        out(q.size(), T(NAN)), lse(q.size() / kDim, NAN), sinks(size_t(w.heads)) {
    std::normal_distribution<float> normal;
    for (T& x : q) x = T(normal(random) * float(w.larger));
    for (T& x : k) x = T(normal(random));
    for (T& x : v) x = T(normal(random));
    for (float& x : sinks) x = normal(random);
  }
  CUtensorMap map(std::vector<T>& t, int heads, int rows, int box) const {
    return {.data = reinterpret_cast<char*>(t.data()),
            .row = int64_t(place(0, 1, heads, rows)),
            .head = int64_t(place(1, 0, heads, rows)),
            .batch = 0,
            .columns = kDim,
            .rows = rows,
            .heads = heads,
            .batches = 1,
            .box = box};
  }
  std::string run(unsigned seed) {
    ForwardParams x{};
    x.q = map(q, w.heads, w.rows, C::kTileQ), x.out = map(out, w.heads, w.rows, 16);
    x.k = map(k, heads_kv(), w.keys, C::kTileK), x.v = map(v, heads_kv(), w.keys, C::kTileK);
    x.scale = kLog2e / std::sqrt(float(kDim));
    x.rows = w.rows, x.keys = w.keys, x.heads = x.units = x.section_heads = w.heads, x.heads_per_key = w.heads_per_key;
    x.packed = 1, x.row_mask = (1 << 28) - 1, x.row_shift = 31;
    x.left = w.left, x.right = w.right, x.offset = w.keys - w.rows;
    x.tiles_of_unit = int(ceil_div(w.rows, C::kTileQ)), x.longest_first = !w.fixed, x.fixed = w.fixed;
    x.epoch = 5, x.counters = counters;
    x.k_rows = w.keys, x.k_heads = heads_kv(), x.k_batches = 1;
    x.lse = lse.data(), x.lse_stride.seq = 1, x.lse_stride.head = w.rows;
    x.dim_v = kDim;
    if (w.sinks) x.sinks = sinks.data(), x.sink_stride = 1;
    return emulated::launch(w.blocks, C::kThreads, seed, [&] { forward_kernel<C>(x); });
  }
  // The largest error of out and lse, of every n-th head.
  double error(int nth = 1) {
    double worst = 0;
    std::vector<double> weight(size_t(w.keys));
    for (int head = 0; head < w.heads; head += nth)
      for (int i = 0; i < w.rows; ++i) {
        const int stand = i + w.keys - w.rows, k_head = head / w.heads_per_key;
        const int begin = std::max(0, stand - w.left), end = std::min(w.keys, stand + w.right + 1);
        const T* const row = q.data() + place(head, i, w.heads, w.rows);
        double top = w.sinks ? double(sinks[size_t(head)]) : -INFINITY, sum = 0, want[kDim] = {};
        for (int j = begin; j < end; ++j) {
          const T* const key = k.data() + place(k_head, j, heads_kv(), w.keys);
          double s = 0;
          for (int d = 0; d < kDim; ++d) s += double(float(row[d])) * double(float(key[d]));
          top = std::max(top, weight[size_t(j)] = s / std::sqrt(double(kDim)));
        }
        for (int j = begin; j < end; ++j) {
          const T* const value = v.data() + place(k_head, j, heads_kv(), w.keys);
          const double p = std::exp(weight[size_t(j)] - top);
          sum += p;
          for (int d = 0; d < kDim; ++d) want[d] += p * double(float(value[d]));
        }
        if (w.sinks) sum += std::exp(double(sinks[size_t(head)]) - top);
        const auto differ = [&](double got, double wanted) {
          const double off = std::abs(got - wanted) / std::max(1., std::abs(wanted));
          if (got != wanted) worst = off <= 1e30 ? std::max(worst, off) : INFINITY;
        };
        for (int d = 0; d < kDim; ++d)
          differ(float(out[place(head, i, w.heads, w.rows) + size_t(d)]), sum > 0 ? want[d] / sum : 0);
        differ(lse[size_t(head) * size_t(w.rows) + size_t(i)], sum > 0 ? top + std::log(sum) : -INFINITY);
      }
    return worst;
  }
};

template <class C>
void expect_right(const Asked& w, unsigned seed) {
  SCOPED_TRACE("h" + std::to_string(w.heads) + " q" + std::to_string(w.rows) + " k" + std::to_string(w.keys) +
               " window" + std::to_string(w.left) + "," + std::to_string(w.right) + " seed " + std::to_string(seed));
  Call<C> call(w, seed);
  ASSERT_EQ(call.run(seed), "");
  EXPECT_LT(call.error(), 0.02);
  const bool counted = !w.fixed && int(ceil_div(w.rows, C::kTileQ)) * w.heads > 2 * w.blocks;
  EXPECT_EQ(call.counters[0], counted ? 0u : 0x1234567890);  // left for a graph's replay, or as it was
}

TEST(Sm90Forward, tiles_of_one_key_tile_and_of_many_are_right) {
  expect_right<Plain<Bf16>>({1, 1, 700, 700, kAll, 0, 2}, 1);
  expect_right<Plain<F16>>({2, 2, 300, 500, kAll, kAll, 2, true, true, 1, true}, 2);
  expect_right<Plain<Bf16>>({2, 1, 200, 90, kAll, kAll, 1, false, false, 1, true}, 3);
}
TEST(Sm90Forward, blocks_with_one_tile_and_with_none_are_right) {
  expect_right<Plain<Bf16>>({1, 1, 250, 513, kAll, kAll, 2, false, false, 1, true}, 4);
  expect_right<Plain<Bf16>>({1, 1, 128, 128, kAll, 0, 1}, 5);
  expect_right<Plain<Bf16>>({1, 1, 100, 400, kAll, 0, 2}, 6);
}
TEST(Sm90Forward, rows_that_see_nothing_and_maxima_that_move_are_right) {
  expect_right<Plain<Bf16>>({2, 1, 500, 200, kAll, -30, 2}, 7);
  expect_right<Plain<F16>>({1, 1, 400, 400, 60, -5, 1}, 8);
  for (unsigned seed = 9; seed < 11; ++seed)
    expect_right<Plain<Bf16>>({2, 1, 380, 640, kAll, 0, 2, false, true, 10}, seed);
}

// Warpgroups that take turns, two or three of them.
TEST(Sm90Forward, narrow_heads_are_right) {
  expect_right<Narrow<Bf16>>({1, 1, 700, 700, kAll, 0, 2}, 11);
  expect_right<Narrow<F16>>({2, 1, 200, 90, kAll, kAll, 1, true, true, 1, true}, 12);
  expect_right<Narrow<Bf16>>({2, 1, 300, 640, kAll, -30, 2, false, false, 10}, 13);
  expect_right<Narrow<Bf16>>({1, 1, 100, 513, kAll, kAll, 2, false, false, 1, true}, 14);
  expect_right<InPlace<Bf16>>({2, 1, 500, 500, kAll, 0, 2}, 15);
  expect_right<InPlace<F16>>({2, 2, 300, 90, kAll, kAll, 1, true, true, 1, true}, 16);
  expect_right<InPlace<Bf16>>({1, 1, 400, 640, kAll, -30, 2, false, false, 10}, 17);
  expect_right<InPlace<Bf16>>({1, 1, 192, 513, kAll, kAll, 1, false, false, 1, true}, 18);
}

TEST(Sm90Window, tiles_of_192_queries_are_right) {
  expect_right<OfWindows<Bf16>>({1, 1, 832, 832, 300, 0, 2}, 1);
  expect_right<OfWindows<F16>>({4, 2, 250, 600, 511, 20, 2, true, true}, 2);
}
TEST(Sm90Window, rows_that_see_nothing_and_single_key_tiles_are_right) {
  expect_right<OfWindows<Bf16>>({2, 1, 700, 300, 256, -30, 2}, 3);
  expect_right<OfWindows<F16>>({2, 1, 577, 577, 40, -5, 2}, 4);
}
TEST(Sm90Window, no_pace_of_warps_and_copies_makes_it_stand_still) {
  for (unsigned seed = 20; seed < 22; ++seed)
    expect_right<OfWindows<Bf16>>({2, 1, 640, 640, 256, 0, 2, false, true, 10}, seed);
  // A copy that lands long after those behind it: its tile is passed over, and was given back before it was there.
  for (unsigned seed : {111, 118}) expect_right<OfWindows<Bf16>>({1, 1, 577, 577, 300, 0, 1}, seed);
}

// Rows with infinite scores are NaN, as they must be; the rows of the query tile that the block had before are not.
template <class C>
void expect_apart(unsigned seed) {
  Call<C> call({4, 1, 64, 200, kAll, kAll, 1, true, false, 1, true}, seed);
  for (const int head : {1, 3})
    for (const int row : {5, 13}) call.q[call.place(head, row, 4, 64)] = typename C::T(3e38f);
  ASSERT_EQ(call.run(seed), "");
  EXPECT_LT(call.error(2), 0.02);
  EXPECT_TRUE(std::isnan(float(call.out[call.place(1, 5, 4, 64)])));
}
TEST(Sm90Forward, infinite_scores_stay_in_their_rows) {
  expect_apart<Plain<Bf16>>(19);
  expect_apart<Narrow<Bf16>>(20);
  expect_apart<InPlace<Bf16>>(21);
  expect_apart<Heads256<Bf16>>(22);
}

// More query tiles than blocks, of one or two key tiles each, of which a warpgroup passes over one. These hung: what a
// warpgroup had passed over before its last product was never given back, and the other one waited for v in its place.
TEST(Sm90Heads256, many_tiles_of_one_or_two_key_tiles_end) {
  const Asked lines[] = {{2, 1, 384, 384, 0, 0, 1},      {4, 2, 100, 1000, 0, 0, 1}, {3, 1, 64, 1000, 5, 0, 1},
                         {4, 2, 128, 128, 0, 3, 1},      {4, 2, 100, 128, 5, 0, 2},  {4, 1, 65, 200, 3, 3, 1},
                         {3, 3, 64, 81, 3, 3, 1, true},  {3, 1, 130, 65, 5, 0, 1},   {6, 2, 65, 129, kAll, 0, 1},
                         {2, 1, 384, 384, 0, 0, 1, false, true, 1, true}};
  unsigned seed = 30;
  for (const Asked& w : lines) expect_right<Heads256<Bf16>>(w, ++seed);
  expect_right<Heads256<F16>>(lines[0], ++seed);
}

}  // namespace
}  // namespace attune::sm90
