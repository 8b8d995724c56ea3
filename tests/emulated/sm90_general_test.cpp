// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/backward/general/kernel_dq.h and kernel_dkdv.h on the emulator, compared with attention in double
// at several schedules: plain masks, and lists, whose walk only these kernels have.
#include "tests/emulated/two_kernel_problem.h"

#include "attention/sm90/backward/general/kernel_dkdv.h"
#include "attention/sm90/backward/general/kernel_dq.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernels' symbol for shared memory: its address is 0 (barrier.h)

namespace {

constexpr int kTileRows = 128, kTileKeys = 64;  // of a CTA, as on the host

template <class T>
struct GeneralProblem : TwoKernelProblem<T> {
  using Base = TwoKernelProblem<T>;
  using Base::w;
  std::vector<QueryTile> row_table;
  std::vector<KeyTile> key_table;
  int row_tiles = 0;

  GeneralProblem(const Asked& asked, unsigned seed) : Base(asked, seed) {
    Problem p{};
    p.batch = w.batch, p.heads_q = w.heads, p.heads_kv = w.heads_kv, p.mask = w.mask, p.mask.blocks = this->blocks;
    Args a;
    const bool listed = p.mask.blocks.q;
    const int64_t head = listed ? this->row_blocks() + 1 : 0;
    a[Role::block_begin] = {.data = this->begin.data(), .stride = {.batch = w.heads * head, .head = head}};
    for (int b = 0; b < w.batch; ++b) {
      const Sequence all{.q_batch = b, .k_batch = b, .len_q = w.rows, .len_k = w.keys, .band = this->band};
      for (int h = 0; h < (listed ? w.heads : 1); ++h)
        for (int n = 0; n < query_tiles(all, kTileRows); ++n)
          row_table.push_back(query_tile(p, a, b, all, h, n, kTileRows, kTileKeys));
      for (int n = 0; n < int(ceil_div(w.keys, kTileKeys)); ++n) {
        key_table.push_back(key_tile_of(all, b));
        cut_key_tile(key_table.back(), n, kTileKeys, kTileKeys, kTileKeys);
      }
    }
    row_tiles = int(row_table.size());
  }
  GeneralParams params() {
    GeneralParams x{};
    static_cast<TwoKernelParams&>(x) = Base::params();
    const bool listed = this->blocks.q;
    x.row_table = row_table.data(), x.row_tiles = &row_tiles, x.key_table = key_table.data();
    x.dq_row = this->dq.map(1), x.dk_row = this->dk.map(1), x.dv_row = this->dv.map(1);
    x.rows_q = w.rows, x.rows_k = w.keys, x.dim_qk = w.dim_qk, x.dim_v = w.dim_v, x.wants_dq = true;
    x.of_rows = {0, listed ? 1 : w.heads, 1}, x.of_keys = {int(key_table.size()), w.heads_kv, 1};
    x.column = this->column.data(), x.list_begin = this->begin_k.data(), x.list_row = this->row_k.data();
    x.list_head = listed ? this->key_blocks() + 1 : 0, x.list_batch = w.heads * x.list_head;
    x.blocks = this->blocks, x.score.kept = 1, x.kept_out = 1;
    return x;
  }
  int blocks_of_rows(const GeneralParams& x) const { return row_tiles * x.of_rows.heads; }
};

template <class T, int Dim>
void expect_right(const Asked& w, unsigned seed) {
  using OfRows = GeneralDqLayout<T, Dim, Dim>;
  using OfKeys = GeneralDkDvLayout<T, Dim, Dim>;
  sm90::expect_right<OfRows, OfKeys>(GeneralProblem<T>(w, seed), general_dq_kernel<OfRows>, general_dkdv_kernel<OfKeys>,
                                     1, 4);
}
constexpr Mask listed(Mask mask, int q, int k) {
  mask.blocks = {q, k, 0};
  return mask;
}

TEST(Sm90General, gradients_of_plain_masks_are_right) {
  expect_right<Bf16, 128>({1, 2, 1, 150, 130, 128, 72, kCausal}, 1);
  expect_right<F16, 256>({2, 1, 1, 70, 100, 200, 256, kFull}, 2);
}
// Also lists: one per warpgroup, one for both, and blocks of two key tiles.
template <class T, int Dim>
void expect_all_right(unsigned seed) {
  using OfRows = GeneralDqLayout<T, Dim, Dim>;
  using OfKeys = GeneralDkDvLayout<T, Dim, Dim>;
  constexpr int kBlocks[][2] = {{0, 0}, {64, 64}, {128, 64}, {64, 128}};
  for (int n = 0; n < kMatrix; ++n) {
    Asked w = matrix_case(n, Dim, Dim, 64, 64);
    const int* const size = kBlocks[(unsigned(n) + seed) % 4];
    w.mask.blocks = {size[0], size[1], 0}, w.persistent = 0;
    sm90::expect_right<OfRows, OfKeys>(GeneralProblem<T>(w, seed + unsigned(n)), general_dq_kernel<OfRows>,
                                       general_dkdv_kernel<OfKeys>, seed + unsigned(n), 1);
  }
}
TEST(Sm90General, every_number_of_steps_is_right_and_ends) {
  for (unsigned seed = 100; seed < 500; seed += 101) {  // different lists per seed
    expect_all_right<Bf16, 128>(seed);
    expect_all_right<F16, 256>(seed + 1000);
  }
}
TEST(Sm90General, gradients_of_lists_are_right) {
  expect_right<F16, 128>({1, 2, 1, 200, 140, 104, 128, listed(kFull, 64, 64)}, 3);
  expect_right<Bf16, 128>({2, 1, 1, 140, 200, 128, 128, listed(kCausal, 128, 128)}, 4);
  expect_right<Bf16, 256>({1, 1, 1, 150, 150, 256, 136, listed(kCausal, 64, 128)}, 5);
}

}  // namespace
}  // namespace attune::sm90
