// SPDX-License-Identifier: Apache-2.0
// Work is counted, not estimated: visible pairs against brute force, and the identities that reports rely on.
#include "core/work.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/asked.h"

using namespace attune;

namespace {

double brute(const Band& band, Rows q, Rows k) {
  double n = 0;
  for (int i = q.first; i < q.last; ++i)
    for (int j = k.first; j < k.last; ++j) n += band.visible(i, j);
  return n;
}

Cost cost_of(const std::string& line) { return cost(problem(line)); }

TEST(VisiblePairs, are_counted_as_brute_force_counts_them) {
  for (const int64_t left : {int64_t(0), int64_t(1), int64_t(6), kUnbounded})
    for (const int64_t right : {int64_t(-7), int64_t(-2), int64_t(0), int64_t(5), kUnbounded})
      for (const int64_t base : {int64_t(0), kMaxPosition, -kMaxPosition})
        for (const int64_t offset : {-30, -4, 0, 3, 30})
          for (const int64_t step : {1, 2, 5}) {
            const Band band{left, right, base + offset, base + 2, step};
            for (const Rows q : {Rows{0, 13}, Rows{5, 6}, Rows{4, 4}, Rows{11, 29}})
              for (const Rows k : {Rows{0, 17}, Rows{3, 9}, Rows{16, 17}, Rows{8, 8}})
                ASSERT_EQ(visible_pairs(band, q, k), brute(band, q, k))
                    << left << " " << right << " " << offset << " " << step << " q " << q.first << " k " << k.first;
          }
}

TEST(VisiblePairs, are_exact_at_the_longest_lengths) {
  const Mask window{.kind = MaskKind::window, .left = 15};
  EXPECT_EQ(visible_pairs(band_of(window, 1, INT32_MAX, 0, 0), {0, 1}, {0, INT32_MAX}), 16);
  const Mask causal{.kind = MaskKind::causal};
  EXPECT_EQ(visible_pairs(band_of(causal, 1, INT32_MAX, 0, 0), {0, 1}, {0, INT32_MAX}), double(INT32_MAX));
  const int64_t n = INT32_MAX;
  const Rows all{0, INT32_MAX};
  EXPECT_EQ(visible_pairs(band_of(causal, INT32_MAX, INT32_MAX, 0, 0), all, all), double(n * (n + 1) / 2));
  EXPECT_EQ(visible_pairs(Band{}, all, all), double(n * n));
  const Mask wide{.kind = MaskKind::window, .left = 3 * kMaxStep, .k_step = kMaxStep};
  EXPECT_EQ(visible_pairs(band_of(wide, 1, INT32_MAX, 0, 0), {0, 1}, {0, INT32_MAX}), 4);
}

TEST(Work, of_full_attention_is_the_textbook_formula) {
  const Cost c = cost_of("forward bf16 b2 h8/2 q128 k256 d64/32 full");
  EXPECT_EQ(c.pairs, 2.0 * 8 * 128 * 256);
  EXPECT_EQ(c.flops, 2 * c.pairs * (64 + 32));
  const double q = 2.0 * 128 * 8, kv = 2.0 * 256 * 2;
  EXPECT_EQ(c.bytes, q * 64 * 2 + q * 32 * 2 + q * 4 + kv * 64 * 2 + kv * 32 * 2) << "q, out, lse, k, v";
}

TEST(Work, of_causal_is_about_half) {
  const double n = 4096;
  EXPECT_EQ(cost_of("forward bf16 b1 h1 q4096 k4096 d64 causal").pairs, n * (n + 1) / 2);
  EXPECT_EQ(cost_of("forward bf16 b1 h1 q1 k4096 d64 causal").pairs, n) << "one query sees every key";
  EXPECT_EQ(cost_of("forward bf16 b1 h1 q1 k4096 d64 causal@top_left").pairs, 1);
  EXPECT_EQ(cost_of("forward bf16 b1 h1 q4096 k4096 d64 window255,0").pairs, n * 256 - 255 * 256 / 2);
}

TEST(Work, of_a_backward_is_two_and_a_half_forwards) {
  for (const std::string rest :
       {"b2 h8/2 q128 k128 d64 full", "b1 h4 q100 k100 d128 causal", "b1 h1 q64 k64 d8 window3,0"}) {
    const Cost forward = cost_of("forward bf16 " + rest), backward = cost_of("backward bf16 " + rest);
    EXPECT_EQ(backward.flops, 2.5 * forward.flops);
    EXPECT_EQ(backward.pairs, forward.pairs);
  }
  const Cost c = cost_of("backward bf16/bf16/bf16/f32 b1 h2/1 q8 k16 d64/32 full");
  EXPECT_EQ(c.flops, 2 * c.pairs * (3 * 64 + 2 * 32)) << "S, dQ, dK over dim_qk; dP, dV over dim_v";
  const double inputs = 16 * (64 * 2 + 32 * 2 + 4 + 32 * 2) + 16 * 96 * 2, gradients = 16 * 64 * 4 + 16 * 96 * 4;
  EXPECT_EQ(c.bytes, inputs + gradients) << "q, out, lse, d_out, k, v; dq, dk, dv";
}

TEST(Work, counts_dtypes_per_role) {
  const Cost small = cost_of("forward bf16/e4m3/bf16 b1 h1 q16 k1024 d64 full");
  const Cost large = cost_of("forward bf16 b1 h1 q16 k1024 d64 full");
  EXPECT_EQ(large.bytes - small.bytes, 1024 * 128);
}

struct Integers {
  std::vector<int32_t> values;
  Tensor tensor(Extents e) {
    const int64_t head = e.dim, seq = head * e.head, batch = seq * e.seq;
    return {.data = values.data(), .dtype = DType::i32, .extent = e, .stride = {batch, seq, head}};
  }
};

TEST(Work, with_arguments_counts_the_lengths_that_are_there) {
  const Problem p = problem("forward f32 b2 h2/1 q8 k16 d8 causal ragged");
  Integers cu_q{{0, 3, 8}}, cu_k{{0, 10, 14}};
  float data = 0;
  Args a;
  a[Role::q] = {.data = &data, .dtype = DType::f32, .extent = {1, 8, 2, 8}};
  a[Role::k] = {.data = &data, .dtype = DType::f32, .extent = {1, 14, 1, 8}};
  a[Role::cu_q] = cu_q.tensor({1, 1, 1, 3});
  a[Role::cu_k] = cu_k.tensor({1, 1, 1, 3});
  const Cost c = cost(p, &a);
  EXPECT_EQ(c.pairs, 2 * ((8 + 9 + 10) + (0 + 1 + 2 + 3 + 4)));
  EXPECT_EQ(c.flops, 2 * c.pairs * 16);
  EXPECT_EQ(c.bytes, 8 * 2 * (8 * 4 + 8 * 4 + 4) + 14 * 16 * 4);
}

TEST(Work, with_arguments_counts_the_blocks_that_are_listed) {
  const Problem p = problem("forward f32 b1 h2/1 q6 k10 d8 causal@top_left blocks4x4x8");
  Integers begin{{0, 2, 3, 3, 3, 5}}, column{{0, 2, 1, 0, 1, -7, 99, 0}};
  float data = 0;
  Args a;
  a[Role::q] = {.data = &data, .dtype = DType::f32, .extent = {1, 6, 2, 8}};
  a[Role::k] = {.data = &data, .dtype = DType::f32, .extent = {1, 10, 1, 8}};
  a[Role::block_begin] = begin.tensor({1, 1, 2, 3});
  a[Role::block_column] = column.tensor({1, 1, 1, 8});
  // Head 0: rows 0-3 see block 0 (1 + 2 + 3 + 4) and nothing of block 2; rows 4, 5 see block 1 (1 + 2).
  // Head 1: rows 0-3 have no block; rows 4, 5 see blocks 0 (4 + 4) and 1 (1 + 2).
  EXPECT_EQ(cost(p, &a).pairs, 10 + 3 + 8 + 3);
}

TEST(Work, of_a_variant_is_what_it_multiplies) {
  // 100 tokens: compressed tokens of 32 with stride 16; 3 blocks of 16; a window of 10.
  const Cost nsa =
      cost_of("forward bf16 b1 h4/1 q100 k100 d64 causal : nsa d=16 gate=sigmoid l=32 n=3 phi=mean s=16 w=10");
  double pairs = 0;
  for (int t = 0; t < 100; ++t) {
    for (int i = 0; i * 16 + 31 <= t; ++i) ++pairs;
    pairs += std::min(t / 16, 2) * 16 + t % 16 + 1;  // whole blocks, plus the query's own block up to the query
    pairs += std::min(t + 1, 10);
  }
  EXPECT_EQ(nsa.pairs, 4 * pairs);
  const double dense = cost(problem("forward bf16 b1 h4 q1024 k1024 d64 causal")).pairs;
  EXPECT_NEAR(cost(problem("forward bf16 b1 h4 q1024 k1024 d64 causal : adaptive block=64 density=0.25")).pairs,
              0.25 * dense, 1e-6 * dense);
}

}  // namespace
