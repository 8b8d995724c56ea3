// SPDX-License-Identifier: Apache-2.0
// The number of head splits that sm90_backward selects for a GQA group.
#include <gtest/gtest.h>

#include "attention/sm90/backward/split_heads.h"
#include "tests/asked.h"

namespace attune::sm90 {
namespace {

constexpr int kSms = 132;

KeyBlocks blocks(std::string_view line) {
  const Problem p = problem(line);
  const bool deterministic = p.reproducible != Reproducible::no;
  const Sequence all{.len_q = p.len_q, .len_k = p.len_k, .band = band_of(p.mask, p.len_q, p.len_k, 0, 0)};
  return {.sequence = key_tile_of(all, 0), .tile_q = p.dim_qk > 64 ? 64 : 128, .tile_k = 128,
          .heads_total = int64_t(p.batch) * p.heads_kv, .group = p.heads_q / p.heads_kv,
          .bytes = double(p.len_q) * p.dim_qk * 8,
          .order = {.alike = p.mask.kind == MaskKind::full, .deterministic = deterministic}};
}
int splits(std::string_view line) { return head_splits_of(blocks(line), kSms); }

// 128 CTAs for 132 SMs; the longest takes 256 steps, the mean is 136.
TEST(HeadSplits, divide_heads_where_the_longest_block_is_what_a_run_waits_for) {
  EXPECT_EQ(splits("backward bf16 b1 h64/8 q2048 k2048 d128 causal"), 2);
  EXPECT_EQ(splits("backward bf16 b1 h64/8 q2048 k2048 d64 causal"), 2);
  EXPECT_EQ(splits("backward bf16 b1 h32/8 q2048 k2048 d128 causal"), 2);
}
TEST(HeadSplits, divide_heads_where_blocks_are_fewer_than_sms) {
  EXPECT_EQ(splits("backward bf16 b1 h32/4 q2048 k2048 d128 full"), 2);
  EXPECT_EQ(splits("backward bf16 b1 h16/1 q4096 k4096 d128 full"), 4);
  EXPECT_EQ(splits("backward bf16 b1 h16/1 q4096 k4096 d128 causal"), 8);
  EXPECT_EQ(splits("backward bf16 b1 h28/4 q1024 k1024 d128 full"), 7) << "only what divides the heads";
  EXPECT_GT(splits("backward bf16 b1 h64/8 q2048 k2048 d128 causal repro=run"), 1);
}
TEST(HeadSplits, leave_heads_whole_where_blocks_fill_the_gpu) {
  EXPECT_EQ(splits("backward bf16 b1 h64/8 q2048 k2048 d128 full"), 1);
  EXPECT_EQ(splits("backward bf16 b1 h64/8 q4096 k4096 d128 full"), 1) << "as many waves, whatever the splits";
  for (const int len : {4096, 8192, 16384, 32768})
    EXPECT_EQ(splits(join("backward bf16 b1 h64/8 q", len, " k", len, " d128 causal")), 1) << len;
  EXPECT_EQ(splits("backward bf16 b8 h32/8 q2048 k2048 d128 causal"), 1);
  EXPECT_EQ(splits("backward bf16 b1 h16 q2048 k2048 d128 causal"), 1) << "no heads share keys";
}
TEST(HeadSplits, leave_heads_whole_where_little_is_to_be_saved) {
  EXPECT_EQ(splits("backward bf16 b1 h2/1 q130 k130 d128 causal"), 1);
  EXPECT_EQ(splits("backward bf16 b2 h4/2 q300 k260 d128 full"), 1);
  EXPECT_EQ(splits("backward bf16 b1 h8/1 q64 k64 d128 causal"), 1);
}

// On one SM, the sum of all CTAs; on many SMs, the longest CTA.
TEST(HeadSplits, time_is_that_of_the_blocks_one_after_another_or_side_by_side) {
  const KeyBlocks b = blocks("backward bf16 b1 h2/1 q256 k256 d128 causal");  // 4 and 2 query tiles, two heads
  EXPECT_DOUBLE_EQ(time_of(b, 1, 1), 2 * 4 + 2 * 2 + 2 * kBlockSteps);
  EXPECT_DOUBLE_EQ(time_of(b, 1, 2), 2 * 4 + kBlockSteps);
  EXPECT_DOUBLE_EQ(time_of(b, 2, 4), 4 + kBlockSteps + kSplitSteps + kCombineSteps + 4 * kReadSteps);
}
TEST(HeadSplits, are_so_many_that_the_cache_holds_what_is_under_way) {
  const auto splits = [](std::string_view line) {
    const KeyBlocks b = blocks(line);
    return head_splits_in_cache(b, b.sequence.keys / 2, kSms);
  };
  for (const int len : {4096, 8192, 16384, 32768})
    EXPECT_EQ(splits(join("backward bf16 b1 h64/8 q", len, " k", len, " d128 causal")), 4) << len;
  EXPECT_EQ(splits("backward bf16 b1 h64/8 q4096 k4096 d64 causal"), 4);
  EXPECT_EQ(splits("backward bf16 b4 h32/8 q4096 k4096 d64 causal"), 1) << "half as wide: the cache holds whole heads";
  EXPECT_EQ(splits("backward bf16 b8 h32/8 q2048 k2048 d128 causal"), 2);
  EXPECT_EQ(splits("backward bf16 b1 h48/4 q8192 k8192 d128 causal"), 6) << "only what divides the heads";
  EXPECT_EQ(splits("backward bf16 b8 h32/16 q4096 k4096 d128 causal"), 1) << "one for two heads at most";
  EXPECT_EQ(splits("backward bf16 b16 h64/8 q512 k512 d128 causal"), 1) << "few rows see a key";
  EXPECT_EQ(splits("backward bf16 b1 h12/1 q4096 k4096 d128 causal"), 6);
  EXPECT_EQ(splits("backward bf16 b1 h8/1 q4096 k4096 d128 causal"), 1) << "128 blocks for 132 SMs";
}
TEST(HeadSplits, never_have_more_blocks_than_their_sums_may_take_memory) {
  const KeyBlocks b = blocks("backward bf16 b1 h32/1 q4096 k4096 d128 causal repro=run");
  EXPECT_LT(time_of(b, 32, kSms), kWorthMore * time_of(b, 16, kSms));
  EXPECT_EQ(head_splits_of(b, kSms), 16) << "32 would be quicker";
  for (const int sms : {1, 16, 132, 148})
    for (const int heads : {8, 24, 64})
      for (const int len : {128, 512, 2048, 8192}) {
        const std::string line = join("backward bf16 b1 h", heads, "/8 q", len, " k", len, " d128 causal");
        const int n = head_splits_of(blocks(line), sms);
        EXPECT_EQ(heads / 8 % n, 0) << line;
        EXPECT_TRUE(n == 1 || n * 8 * len / 128 <= kMostBlocks * sms) << line;
      }
}

}  // namespace
}  // namespace attune::sm90
