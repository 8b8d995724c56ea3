// SPDX-License-Identifier: Apache-2.0
#include "core/variant/pattern.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/asked.h"

namespace attune {
namespace {

Pattern pattern(std::string_view text, std::string_view line = "forward f32 b1 h4 q4096 k4096 d64 full blocks64x64x1") {
  Pattern p;
  EXPECT_EQ(parse(text, problem(line), p).message, "");
  return p;
}

std::string refusal(std::string_view text) {
  Pattern p;
  return parse(text, problem("forward f32 b1 h4 q4096 k4096 d64 full blocks64x64x1"), p).message;
}

TEST(Pattern, tokens_become_blocks) {
  EXPECT_EQ(pattern("local_window").half, 4);  // 512 tokens are 8 blocks
  EXPECT_EQ(pattern("local_window window=63").half, 0);
  EXPECT_EQ(pattern("local_window window=512", "forward f32 b1 h4 q4096 k4096 d64 full blocks128x128x1").half, 2);
  EXPECT_EQ(pattern("global_local global=65").first, 2);
  EXPECT_EQ(pattern("streaming sink=4 local=65").sink, 1);
  EXPECT_EQ(pattern("streaming sink=4 local=65").local, 2);
}

TEST(Pattern, the_default_of_global_tokens_is_at_least_one_block) {
  EXPECT_EQ(pattern("global_local", "forward f32 b1 h4 q4096 k4096 d64 full blocks128x128x1").first, 1);
}

TEST(Pattern, the_ratio_of_offsets_is_of_all_key_blocks) {
  EXPECT_EQ(pattern("dilated_offsets ratio=0.25").steps, 8);  // a quarter of 64 blocks, half to either side
  EXPECT_EQ(pattern("dilated_offsets reach=3").steps, 3);
}

TEST(Pattern, presets_of_levels_are_not_dense) {
  for (const char* preset : {"standard", "fine_grained", "long_range", "ultra_sparse"}) {
    const Pattern p = pattern(join("hierarchical preset=", preset));
    int active = 0;
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < 64; ++j) active += p.active(0, i, j);
    EXPECT_LT(active, 64 * 64 / 2) << preset;
    EXPECT_GT(active, 64) << preset;
  }
}

TEST(Pattern, kinds_of_heads_repeat) {
  const Pattern p = pattern("local_window window=64 kinds=2*sparse,dense,streaming sink=64 local=128");
  EXPECT_EQ(p.head_kinds, 4);
  for (int h = 0; h < 8; ++h) {
    const HeadKind want[] = {HeadKind::sparse, HeadKind::sparse, HeadKind::dense, HeadKind::streaming};
    EXPECT_EQ(p.kind_of(h), want[h % 4]) << h;
  }
  EXPECT_FALSE(p.active(0, 20, 3));
  EXPECT_TRUE(p.active(2, 20, 3));
  EXPECT_TRUE(p.active(3, 20, 0) && p.active(3, 20, 19) && !p.active(3, 20, 18));
}

TEST(Pattern, bad_text_is_one_sentence) {
  EXPECT_EQ(refusal("spiral"),
            "pattern 'spiral': 'spiral' is not one of dense, local_window, dilated_rates, dilated_offsets, "
            "dilated_multiples, global_local, strided, random, hierarchical, streaming");
  EXPECT_EQ(refusal("random density=1.5"),
            "pattern 'random density=1.5': density=1.5 is not in 0 ... 1 with at most six decimals");
  EXPECT_EQ(refusal("random"), "pattern 'random': density= is not in 0 ... 1 with at most six decimals");
  EXPECT_EQ(refusal("strided window=3"),
            "pattern 'strided window=3': unknown parameter 'window'; accepted: stride, kinds");
  for (const char* text :
       {"", "random density=0.1 density=0.2", "strided stride=0", "strided stride=", "strided stride",
        "strided  stride=4", "dilated_rates rates=1,,2", "dilated_rates rates=1,2,",
        "dilated_rates rates=1,2,3,4,5,6,7,8,9",
        "dilated_offsets", "dilated_offsets ratio=0.1 reach=2", "dilated_offsets ratio=2", "hierarchical preset=no",
        "hierarchical strides=64 windows=64,128", "hierarchical preset=standard strides=64 windows=64",
        "local_window window=-1", "local_window kinds=odd", "local_window kinds=0*dense",
        "local_window kinds=300*dense", "local_window sink=64", "random density=0.1 seed=-1",
        "random density=0.1234567", "random density=.5",
        "global_local rows=2", "streaming local=0"})
    EXPECT_NE(refusal(text), "") << text;
}

TEST(Pattern, a_bound_is_the_sum_of_its_heads_at_any_size) {
  const auto bound_of = [](std::string_view text, std::string_view line, int heads) {
    return bound(pattern(text, line), problem(line), problem(line).batch, heads, true);
  };
  constexpr std::string_view kCausal = "forward f32 b2 h7 q300 k500 d8 causal blocks16x8x1";
  for (const std::string text : {"random density=0.3", "local_window window=64", "global_local global=8 window=32"}) {
    const int64_t sparse = bound_of(text, kCausal, 1), dense = bound_of("dense", kCausal, 1),
                  streaming = bound_of("streaming sink=64 local=256", kCausal, 1);
    EXPECT_LT(sparse, dense);
    EXPECT_EQ(bound_of(text, kCausal, 7), 7 * sparse);
    EXPECT_EQ(bound_of(text + " kinds=2*sparse,1*dense", kCausal, 7), 5 * sparse + 2 * dense);
    EXPECT_EQ(bound_of(text + " kinds=dense,streaming,dense,sparse", kCausal, 7), 4 * dense + 2 * streaming + sparse);
  }
  constexpr std::string_view kLong = "forward f32 b1 h1 q65536 k2147483647 d8 full blocks1x1x1";
  EXPECT_EQ(bound_of("random density=0.5", kLong, 1), int64_t(32768) * 2147483647) << "a product beyond 2^63";
  EXPECT_EQ(bound_of("random density=0.000001", kLong, 1), 140737488) << "rounded once, as any sum";
  constexpr std::string_view kMany = "forward f32 b4096 h4096 q65536 k2147483647 d8 full blocks1x1x1";
  EXPECT_EQ(bound_of("dense", kMany, 4096), int64_t(1) << 62);
  Pattern p;
  EXPECT_EQ(parse("dense", problem("forward f32 b1 h1 q2147483647 k1 d8 full blocks64x64x1"), p).message,
            "pattern 'dense': the problem has 33554432 rows of blocks; at most 4194304 are accepted");
}

TEST(Pattern, a_shuffle_is_a_permutation_of_any_count) {
  for (const uint32_t count : {1u, 2u, 3u, 5u, 8u, 63u, 64u, 65u, 1000u}) {
    const Shuffle shuffle(7, 3, 5, count);
    std::vector<int> seen(count);
    for (uint32_t x = 0; x < count; ++x) {
      const uint32_t y = shuffle(x);
      ASSERT_LT(y, count);
      ++seen[y];
    }
    for (uint32_t x = 0; x < count; ++x) EXPECT_EQ(seen[x], 1) << count << " " << x;
  }
}

TEST(Pattern, a_shuffle_favours_no_place_and_no_pair) {
  constexpr int kCount = 12, kKeep = 4, kRows = 60000;
  std::vector<double> single(kCount), pair(kCount * kCount);
  for (int row = 0; row < kRows; ++row) {
    const Shuffle shuffle(1, 0, uint32_t(row), kCount);
    bool in[kCount];
    for (int x = 0; x < kCount; ++x) single[size_t(x)] += in[x] = shuffle(uint32_t(x)) < kKeep;
    for (int x = 0; x < kCount; ++x)
      for (int y = 0; y < x; ++y) pair[size_t(x * kCount + y)] += in[x] && in[y];
  }
  const double p = double(kKeep) / kCount, q = p * (kKeep - 1) / (kCount - 1);
  for (int x = 0; x < kCount; ++x) {  // within five standard deviations
    EXPECT_NEAR(single[size_t(x)] / kRows, p, 5 * std::sqrt(p * (1 - p) / kRows)) << x;
    for (int y = 0; y < x; ++y)
      EXPECT_NEAR(pair[size_t(x * kCount + y)] / kRows, q, 5 * std::sqrt(q * (1 - q) / kRows)) << x << " " << y;
  }
}

}  // namespace
}  // namespace attune
