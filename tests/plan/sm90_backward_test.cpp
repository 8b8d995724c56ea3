// SPDX-License-Identifier: Apache-2.0
// Plans of sm90_backward, on absent devices.
#include <gtest/gtest.h>

#include "attention/sm90/backward/choice.h"
#include "plan/plan.h"
#include "tests/asked.h"
#include "verify/cases/cases.h"

namespace attune {
namespace {

class Sm90Backward : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("sm90_backward")) GTEST_SKIP() << "this build has no GPU code for Hopper";
  }
  static std::string answer(std::string_view line, std::string_view device = "h200") {
    return find_backend("sm90_backward")->supports(problem(line), known(device)).message;
  }
  static Plan planned(std::string_view line) {
    Plan plan;
    const Status s = Planner{.device = known("h200")}.plan(problem(line), plan);
    EXPECT_TRUE(s.ok()) << line << ": " << s.message;
    return plan;
  }
  static sm90::BackwardChoice chosen(std::string_view line) {
    return planned(join("backward ", line)).choice.as<sm90::BackwardChoice>();
  }
  static std::string described(std::string_view line) {
    const Plan plan = planned(join("backward ", line));
    return plan.backend->describe(plan);
  }
};

TEST_F(Sm90Backward, describes_its_choice_in_a_line) {
  EXPECT_EQ(described("bf16 b1 h12 q2048 k2048 d128 full"),
            "fused kernel d128, 80 x 128 transposed tiles, persistent CTAs; 2 query splits for 60 key tiles");
  EXPECT_EQ(described("bf16 b1 h64/8 q8192 k8192 d128 causal"),
            "fused kernel d128, 80 x 128 transposed tiles, persistent CTAs, preprocessing ahead; "
            "4 head splits of each GQA group");
  EXPECT_EQ(described("bf16 b2 h8 q2048 k2048 d64 full softcap repro=run"),
            "fused kernel d64, 128 x 128 tiles, deterministic, options that change scores, tile table");
  EXPECT_EQ(described("bf16 b1 h2 q512 k512 d96 causal blocks64x128x9"),
            "fused kernel d128, 64 x 128 tiles, block lists, persistent CTAs");
  EXPECT_EQ(described("f16 b1 h6/2 q77 k99 d192/128 causal"), "two kernels, dQ and dK/dV, d192/128, 128 x 64 tiles");
  EXPECT_EQ(described("bf16 b2 h8 q2048 k2048 d64 full bias repro=run"),
            "general kernels, dQ and dK/dV, d128, 128 x 64 tiles, deterministic, options that change scores, "
            "tile table");
}

TEST_F(Sm90Backward, is_the_first_link_for_plain_gradients) {
  for (const char* line : {"backward bf16 b8 h16 q2048 k2048 d128 causal", "backward f16 b2 h32/8 q4096 k4096 d64 full",
                           "backward bf16 b1 h2 q77 k513 d72/40 window99,20 sink",
                           "backward bf16 b2 h8 q2048 k2048 d256 full repro=run",
                           "backward f16 b1 h6/2 q77 k99 d192/128 causal sink",
                           "backward bf16 b8 h16 q2048 k2048 d128 causal repro=run",
                           "backward bf16 b2 h8 q2048 k2048 d128 full ragged",
                           "backward bf16/bf16/bf16/f32 b2 h8 q512 k512 d64 causal@absolute accumulate",
                           "backward bf16 b2 h8 q2048 k2048 d64 full softcap dropout repro=run",
                           "backward f16 b2 h8 q2048 k2048 d128 full alibi bias.f16",
                           "backward f16 b2 h8 q2048 k2048 d64 full blocks128x128x900",
                           "backward f16/f16/f16/f32 b2 h8 q2048 k2048 d128 causal blocks64x128x900 accumulate",
                           "backward bf16 b2 h8 q2048 k2048 d256 full ragged",
                           "backward bf16/bf16/bf16/f32 b2 h8 q512 k512 d192/128 causal@absolute accumulate",
                           "backward f16 b2 h8 q2048 k2048 d256 full softcap alibi bias.f16 dropout",
                           "backward bf16 b2 h8 q2048 k2048 d64 full blocks64x64x9000",
                           "backward bf16 b2 h8 q2048 k2048 d128 full blocks128x64x9000 softcap repro=run",
                           "backward bf16 b2 h8 q2048 k2048 d64 full bias repro=run"})
    EXPECT_EQ(planned(line).backend->name, "sm90_backward") << line;
  for (const char* line : {"backward bf16 b2 h8 q2048 k2048 d128 full paged16",
                           "backward bf16 b2 h8 q2048 k2048 d64 full blocks32x64x9000"})
    EXPECT_EQ(planned(line).backend->name, "sm80_backward") << line;
}

// The general kernels compute dQ in a separate kernel, without sums in memory.
TEST_F(Sm90Backward, lists_and_options_that_its_own_kernels_do_not_serve_go_to_those_of_any_problem) {
  const auto plan = [](std::string_view line) { return planned(join("backward bf16 b2 h8 q1024 k1024 ", line)); };
  const int narrow = plan("d64 full blocks64x64x900").kernel, wide = plan("d256 full alibi").kernel;
  EXPECT_NE(narrow, wide);
  for (const char* line : {"d128 full blocks128x64x900", "d128 full blocks128x128x900 softcap",
                           "d96 causal blocks128x128x900 repro=run", "d64 full bias repro=run"})
    EXPECT_EQ(plan(line).kernel, narrow) << line;
  EXPECT_EQ(plan("d136/8 causal blocks128x128x900").kernel, wide);
  EXPECT_NE(plan("d64 full blocks128x128x900").kernel, narrow);
  EXPECT_NE(plan("d256 full").kernel, wide);
  EXPECT_LT(plan("d128 full blocks64x64x900").workspace_bytes, plan("d128 full").workspace_bytes);
}

TEST_F(Sm90Backward, takes_the_narrower_kernel_that_holds_both_head_dims) {
  const auto kernel = [](std::string_view dims) {
    return planned(join("backward bf16 b8 h16 q1024 k1024 d", dims, " full")).kernel;
  };
  EXPECT_EQ(kernel("8"), kernel("64"));
  EXPECT_EQ(kernel("72/8"), kernel("96"));
  EXPECT_EQ(kernel("8/72"), kernel("96"));
  EXPECT_EQ(kernel("8/104"), kernel("128"));
  EXPECT_NE(kernel("64"), kernel("96"));
  EXPECT_NE(kernel("96"), kernel("128"));
  EXPECT_EQ(kernel("136/128"), kernel("192/128"));
  EXPECT_EQ(kernel("128/136"), kernel("192"));
  EXPECT_EQ(kernel("64/200"), kernel("256"));
  EXPECT_NE(kernel("192/128"), kernel("192"));
  EXPECT_NE(kernel("192"), kernel("256"));
  const auto deterministic = [&](std::string_view dims) {
    return planned(join("backward bf16 b8 h16 q1024 k1024 d", dims, " full repro=run")).kernel;
  };
  EXPECT_EQ(deterministic("72/8"), deterministic("96"));
  EXPECT_NE(deterministic("64"), deterministic("96"));
  EXPECT_NE(deterministic("96"), deterministic("128"));
}

TEST_F(Sm90Backward, many_keys_have_tiles_of_80_queries_where_few_are_past_the_end) {
  const auto tile = [](std::string_view line) { return planned(join("backward ", line)).tile_q; };
  for (const char* line : {"bf16 b8 h16 q2048 k2048 d128 full", "f16 b2 h32/8 q1024 k1024 d104 full sink",
                           "bf16 b1 h2 q75 k8192 d8/128 full", "bf16 b1 h2 q150 k1030 d128 full",
                           "bf16 b1 h16 q16384 k16384 d128 window4096,0",
                           "bf16 b1 h1 q3300 k3300 d104/8 window3000,3000",
                           "bf16 b8 h16 q2048 k2048 d128 causal", "f16 b2 h8 q470 k2100 d112 causal@top_left sink"})
    EXPECT_EQ(tile(line), 80) << line;
  for (const char* line :
       {"bf16 b8 h16 q1920 k1920 d128 causal", "bf16 b1 h16 q16384 k16384 d128 window2048,0",
        "bf16 b8 h16 q2048 k2048 d128 window4096,4096",
        "bf16 b8 h16 q2048 k1023 d128 full", "bf16 b8 h16 q2048 k2048 d96 full",
        "bf16 b8 h16 q2048 k2048 d128 full ragged", "bf16 b8 h16 q2048 k2048 d128 full repro=run",
        "bf16 b8 h16 q2048 k2048 d128 full alibi", "bf16 b8 h16 q2048 k2048 d128 full blocks128x128x900",
        "bf16/bf16/bf16/f32 b8 h16 q2048 k2048 d128 full accumulate",
        "bf16 b8 h16 q512 k2048 d128 full"})  // 560 rows instead of 512
    EXPECT_EQ(tile(line), 64) << line;
}

// A tile of 80 rows may start at any multiple of 16, and preprocessing takes 64 rows.
TEST_F(Sm90Backward, its_workspace_of_transposed_tiles_holds_whole_ones) {
  const size_t rows = 8 * 1152;
  const size_t bytes = planned("backward bf16 b1 h8 q1039 k1100 d128 full").workspace_bytes;
  EXPECT_GE(bytes, rows * (8 + 128 * 4));
  EXPECT_LT(bytes, rows * (8 + 128 * 4) + 4096);
}

// Statistics of 8 bytes per row and dQ in f32, for rows rounded up to a tile; 64 bytes per key tile.
TEST_F(Sm90Backward, its_workspace_is_dq_in_f32_and_two_numbers_a_row) {
  const size_t rows = 2 * 8 * 1024;
  const size_t bytes = planned("backward bf16 b2 h8 q1000 k700 d80 causal").workspace_bytes;
  EXPECT_GE(bytes, rows * (8 + 128 * 4));
  EXPECT_LT(bytes, rows * (8 + 128 * 4) + 4096);
}

TEST_F(Sm90Backward, divides_heads_that_share_keys_where_blocks_are_few) {
  const auto splits = [](std::string_view line) { return planned(join("backward ", line)).splits; };
  EXPECT_EQ(splits("f16 b1 h64/8 q2048 k2048 d64 causal sink"), 2);
  EXPECT_EQ(splits("bf16 b1 h32/4 q2048 k2048 d128 full"), 2);
  EXPECT_EQ(splits("bf16 b1 h32/4 q2048 k2048 d96 full"), 2);
  EXPECT_EQ(splits("bf16 b1 h64/8 q2048 k2048 d128 causal repro=run"), 4);
  EXPECT_EQ(splits("bf16 b1 h8/1 q130 k200 d128 causal"), 8);
  for (const char* line :
       {"bf16 b1 h64/8 q2048 k2048 d128 causal repro=batch",  // bits do not depend on the number of sequences
        "bf16 b1 h64/8 q2048 k2048 d128 causal ragged", "bf16 b1 h64/8 q2048 k2048 d128 causal@absolute",
        "bf16 b1 h64/8 q2048 k2048 d128 causal alibi", "bf16 b1 h64/8 q2048 k2048 d128 full blocks128x128x900",
        "bf16/bf16/bf16/f32 b1 h64/8 q2048 k2048 d128 causal", "bf16 b1 h64/8 q2048 k2048 d256 causal",
        "bf16 b1 h64/8 q4096 k4096 d128 full", "bf16 b1 h16 q2048 k2048 d128 causal"})
    EXPECT_EQ(splits(line), 1) << line;
}
TEST_F(Sm90Backward, with_a_diagonal_divides_heads_so_that_the_cache_holds_what_is_under_way) {
  for (const char* line : {"bf16 b1 h64/8 q2048 k2048 d128 causal", "f16 b1 h64/8 q8192 k8192 d128 causal",
                           "bf16 b1 h64/8 q32768 k32768 d128 causal sink"}) {
    const sm90::BackwardChoice c = chosen(line);
    EXPECT_EQ(c.head_splits, 4) << line;
    EXPECT_EQ(c.dim_qk, 128) << line;
    EXPECT_TRUE(c.transposed && c.persistent && c.prepares) << line;
    EXPECT_FALSE(c.deterministic || c.options || c.listed || c.tabled) << line;
  }
  EXPECT_EQ(planned("backward bf16 b8 h32/8 q2048 k2048 d128 causal").splits, 2);
  int backwards = 0;
  for (const std::string_view line : large_lines()) {
    if (!line.starts_with("backward ")) continue;
    ++backwards;
    const Plan plan = planned(line.substr(0, line.find(" |")));
    const auto c = plan.choice.as<sm90::BackwardChoice>();
    EXPECT_GT(c.head_splits, 1) << line;
    EXPECT_EQ(c.persistent, plan.problem.reproducible == Reproducible::no) << line;
  }
  EXPECT_GT(backwards, 0) << "large_lines() has no backward";
  for (const char* line :
       {"bf16 b1 h64/8 q4096 k4096 d64 causal", "bf16 b1 h64/8 q4096 k4096 d128 window4000,0",
        "bf16 b1 h64/8 q4096 k4096 d128 causal ragged", "bf16 b1 h64/8 q4096 k4096 d96 causal",
        "bf16 b4 h32/16 q4096 k4096 d128 causal",  // GQA groups of two
        "bf16 b32 h64/8 q512 k512 d128 causal"})   // few rows see a key
    EXPECT_EQ(chosen(line).head_splits, 1) << line;
}
TEST_F(Sm90Backward, in_a_fixed_order_too_but_where_that_leaves_sms_idle) {
  for (const int dim : {64, 128})
    for (const int len : {4096, 8192}) {
      const sm90::BackwardChoice c =
          chosen(join("bf16 b1 h64/8 q", len, " k", len, " d", dim, " causal repro=run"));
      EXPECT_EQ(c.head_splits, 4) << dim << ' ' << len;
      EXPECT_EQ(c.dim_qk, dim) << dim << ' ' << len;
      EXPECT_TRUE(c.deterministic) << dim << ' ' << len;
      EXPECT_FALSE(c.transposed || c.persistent || c.tabled) << dim << ' ' << len;
    }
  EXPECT_EQ(planned("backward bf16 b1 h32/8 q2048 k2048 d128 causal repro=run").splits, 4) << "one for each head";
  EXPECT_EQ(planned("backward bf16 b1 h64/8 q8192 k8192 d96 causal repro=run").splits, 1) << "d96 has no such kernel";
  EXPECT_EQ(planned("backward bf16 b1 h64/8 q8192 k8192 d128 full repro=run").splits, 1);
  EXPECT_EQ(planned("backward bf16 b1 h64/8 q8192 k8192 d128 causal repro=batch").splits, 1);
}
// dQ has 128 f32 columns and two statistics per row, and 80 rows more than a head, rounded up to 64.
TEST_F(Sm90Backward, sums_of_head_splits_take_no_more_memory_than_those_of_dq) {
  for (const int len : {4096, 8192, 16384, 32768})
    for (const int heads : {64, 32})
      for (const int heads_kv : {4, 8}) {
        const std::string line = join("backward bf16 b1 h", heads, "/", heads_kv, " q", len, " k", len, " d128 causal");
        const Plan plan = planned(line);
        const size_t rows = size_t(heads) * size_t(round_up(len + 80, 64)), dq = rows * 128 * sizeof(float);
        EXPECT_GT(plan.splits, 1) << line;
        EXPECT_LE(plan.workspace_bytes, 2 * dq + rows * 8 + 4096) << line;
      }
}

TEST_F(Sm90Backward, divided_heads_have_kernels_of_their_own_of_64_queries_at_dims_over_64) {
  const Plan divided = planned("backward bf16 b1 h32/4 q2048 k2048 d128 full");
  const Plan whole = planned("backward bf16 b1 h32/4 q2048 k2048 d128 full ragged");
  EXPECT_EQ(divided.tile_q, 64);
  EXPECT_NE(divided.kernel, whole.kernel);
  EXPECT_EQ(divided.kernel, planned("backward bf16 b1 h32/4 q2048 k2048 d72 full").kernel);
  EXPECT_NE(divided.kernel, planned("backward bf16 b1 h32/4 q2048 k2048 d128 full repro=run").kernel);
}

// dK and dV in f32 for every head split, in whole key tiles and at the kernel's head dim.
TEST_F(Sm90Backward, its_workspace_has_the_sums_of_head_splits) {
  const size_t rows = 8 * 192;
  const Plan plan = planned("backward bf16 b1 h8/1 q130 k200 d104 causal");
  const size_t sums = size_t(plan.splits) * 256 * 128 * 2 * 4;
  EXPECT_EQ(plan.splits, 8);
  EXPECT_GE(plan.workspace_bytes, rows * (8 + 128 * 4) + sums);
  EXPECT_LT(plan.workspace_bytes, rows * (8 + 128 * 4) + sums + 4096);
}

TEST_F(Sm90Backward, many_tiles_of_keys_that_few_rows_see_have_persistent_ctas) {
  const auto persistent = [](std::string_view line) { return chosen(line).persistent; };
  for (const char* line :
       {"bf16 b32 h32 q512 k512 d64 causal", "bf16 b4 h32 q4096 k4096 d64 causal", "f16 b8 h32 q2048 k2048 d40 full",
        "bf16 b2 h32 q8192 k8192 d64 full", "bf16 b1 h32 q16384 k16384 d64 causal",
        "bf16 b32 h16 q640 k640 d128 full", "bf16 b16 h16 q1024 k1024 d128 causal sink",
        "bf16 b8 h16 q2048 k2048 d128 causal", "bf16 b1 h16 q16384 k16384 d128 causal",
        "f16 b2 h16 q8192 k8192 d104 full", "bf16 b1 h16 q16384 k16384 d128 window1024,0",
        "bf16 b1 h32 q16384 k16384 d64 window1024,1024", "bf16 b8 h32/8 q1024 k1024 d128 causal",
        "bf16 b10 h7 q200 k400 d64 full", "bf16 b10 h7 q400 k200 d128 causal@top_left",
        "bf16 b32 h16 q512 k512 d128 full", "bf16 b16 h16 q1024 k1024 d128 causal repro=run",  // deterministic
        "bf16 b8 h32 q2048 k2048 d64 causal repro=run", "f16 b2 h32 q8192 k8192 d40 full repro=run",
        "bf16 b7 h10/5 q300 k600 d8 full repro=run", "f16 b2 h15 q700 k700 d8 window200,100 repro=run",
        "bf16 b1 h4 q2048 k2048 d128 full", "bf16 b2 h2 q2048 k2048 d64 full",  // 64 tiles, with query splits
        "bf16 b1 h8 q2048 k2048 d128 causal", "bf16 b1 h4 q2048 k2048 d64 causal",
        "bf16 b32 h16 q512 k512 d128 full blocks128x128x9000", "f16 b1 h2 q512 k512 d96 causal blocks64x128x9",
        // From verify/cases_tiles.cpp.
        "bf16 b1 h2 q1200 k1200 d8 causal", "f16 b1 h2 q1300 k700 d104/8 causal",
        "bf16 b1 h1 q2100 k2100 d8/104 causal", "bf16 b9 h15 q775 k129 d104 full blocks64x128x3510",
        "f16 b24 h4 q200 k300 d128 window150,-3 blocks64x128x1152 sink",
        "bf16 b17 h4 q400 k260 d128 causal blocks128x128x12"})
    EXPECT_TRUE(persistent(line)) << line;
  for (const char* line :
       {"bf16 b1 h32 q32768 k32768 d64 full", "bf16 b1 h16 q32768 k32768 d128 full",
        "bf16 b4 h32/4 q2048 k2048 d64 causal",  // eight query heads walk each key tile
        "bf16 b1 h16 q1024 k1024 d64 causal", "bf16 b1 h8 q2048 k2048 d128 full",  // 128 tiles for 132 SMs
        "bf16 b1 h4 q2048 k2048 d128 full repro=run",
        "bf16 b1 h16 q1024 k1024 d64 causal repro=run", "bf16 b1 h32 q32768 k32768 d64 full repro=run",
        "bf16 b32 h16 q512 k512 d96 full", "bf16 b8 h32 q2048 k2048 d96 full repro=run",
        "bf16 b16 h16 q1024 k1024 d128 full repro=run",
        "bf16 b32 h32 q512 k512 d64 causal ragged", "bf16 b32 h32 q512 k512 d64 causal@absolute",
        "bf16 b32 h32 q512 k512 d64 causal alibi", "bf16 b32 h16 q512 k512 d64 full blocks128x128x9000",
        "bf16 b32 h16/8 q512 k512 d128 full blocks128x128x9000",  // lists with GQA
        "bf16 b32 h16 q512 k512 d128 full blocks128x128x9000 ragged",
        "bf16 b32 h16 q512 k512 d128 causal@absolute blocks128x128x9000",
        "bf16/bf16/bf16/f32 b32 h16 q512 k512 d128 full blocks128x128x9000",
        "bf16/bf16/bf16/f32 b32 h32 q512 k512 d64 causal", "bf16 b32 h32 q512 k512 d256 causal",
        "bf16 b32 h32 q200 k512 d64 window64,0",        // no query sees the first keys,
        "bf16 b32 h32 q200 k512 d64 causal@top_left"})  // or the last
    EXPECT_FALSE(persistent(line)) << line;
}
TEST_F(Sm90Backward, of_few_keys_a_fixed_order_is_the_quickest) {
  const auto same = [](const char* line) {
    const Plan plain = planned(join("backward ", line)), fixed = planned(join("backward ", line, " repro=run"));
    return plain.kernel == fixed.kernel && plain.workspace_bytes == fixed.workspace_bytes;
  };
  for (const char* line : {"bf16 b32 h16 q512 k512 d128 full", "f16 b32 h16 q512 k512 d72 causal",
                           "bf16 b16 h16 q1024 k1024 d128 causal", "bf16 b64 h16 q200 k256 d8/128 causal",
                           "bf16 b64 h16 q256 k200 d128 causal@top_left",
                           // From verify/cases_tiles.cpp.
                           "bf16 b16 h16 q70 k400 d8/104 causal", "f16 b8 h32 q150 k500 d104/8 full",
                           "f16 b8 h32 q80 k500 d72/8 causal",
                           "bf16 b64 h32 q256 k256 d64 full", "f16 b32 h32 q512 k512 d40 causal"})  // up to d64
    EXPECT_TRUE(same(line)) << line;
  for (const char* line :
       {"bf16 b32 h16 q513 k512 d128 full", "bf16 b32 h16 q512 k513 d128 full", "bf16 b16 h16 q1025 k1025 d128 causal",
        "bf16 b63 h32 q257 k257 d64 full", "bf16 b32 h32 q513 k513 d64 causal", "bf16 b64 h16/8 q512 k512 d128 full",
        "bf16 b32 h16 q512 k512 d128 full alibi", "bf16 b32 h16 q512 k512 d128 full ragged",
        "bf16 b32 h16 q512 k512 d128 window64,0", "bf16 b32 h16 q512 k512 d128 causal@absolute",
        "bf16 b64 h16 q256 k200 d128 causal",  // rows that see no key
        "bf16 b15 h16 q512 k512 d128 full",    // 960 key tiles
        "bf16 b16 h8 q1024 k1024 d128 causal"})
    EXPECT_FALSE(same(line)) << line;
}
// The counter fits into memory that is needed anyway.
TEST_F(Sm90Backward, persistent_ctas_need_no_more_memory) {
  const auto bytes = [](int batch) {
    return planned(join("backward bf16 b", batch, " h12 q128 k128 d64 full")).workspace_bytes;
  };
  EXPECT_EQ(bytes(12) - bytes(11), bytes(11) - bytes(10)) << "144 tiles, and 132 and 120 for 132 SMs";
}

// Four query splits of the one tile in the last wave, 64 KB each, with a counter per warp.
TEST_F(Sm90Backward, query_splits_of_the_last_tiles_have_room_for_their_sums) {
  const auto bytes = [](int heads, const char* mask) {
    return planned(join("backward bf16 b7 h", heads, " q1500 k128 d64 ", mask)).workspace_bytes;
  };
  const size_t of_heads = bytes(18, "full") - bytes(17, "full");  // 126 and 119 tiles for 132 SMs
  EXPECT_GE(bytes(19, "full") - bytes(18, "full"), of_heads + 4 * 64 * 1024);
  EXPECT_LT(bytes(19, "full") - bytes(18, "full"), of_heads + 4 * 64 * 1024 + 4096);
  EXPECT_LT(bytes(19, "causal@top_left") - bytes(18, "causal@top_left"), of_heads + 4096);
}

TEST_F(Sm90Backward, tiles_have_query_splits_where_ctas_would_wait) {
  const auto splits = [](std::string_view line) { return chosen(line).query_splits; };
  for (const char* line :
       {"bf16 b1 h12 q2048 k2048 d128 full", "bf16 b1 h12 q2048 k2048 d64 full", "bf16 b2 h16 q8192 k8192 d128 full",
        "bf16 b1 h4 q2048 k2048 d128 full", "bf16 b1 h4 q2048 k2048 d64 full", "bf16 b1 h8 q2048 k2048 d128 causal",
        "bf16 b1 h4 q2048 k2048 d64 causal", "bf16 b1 h2 q4096 k4096 d128 causal",
        "bf16 b1 h16 q16384 k16384 d128 full blocks128x128x65536",
        // From verify/cases_tiles.cpp and tests/cuda/attention/graph_test.cpp.
        "bf16 b7 h19 q1500 k128 d8 full", "f16 b5 h28 q1000 k100 d104/8 full",
        "bf16 b3 h5 q1300 k1150 d8/104 full sink", "bf16 b5 h54/27 q1000 k100 d8 full",
        "bf16 b1 h2 q1200 k1200 d8 causal", "f16 b1 h2 q1300 k700 d104/8 causal",
        "bf16 b1 h1 q2100 k2100 d8/104 causal", "bf16 b1 h3 q2000 k500 d8 full", "f16 b2 h2 q1700 k300 d104/8 full",
        "bf16 b1 h2 q2000 k1100 d8/104 full", "f16 b1 h2 q2000 k1100 d104/8 full", "f16 b5 h27 q770 k130 d16/8 full",
        "bf16 b5 h27 q770 k130 d8/104 full", "f16 b4 h8 q775 k1030 d8/104 full", "bf16 b1 h2 q1500 k100 d8 full",
        "f16 b1 h2 q1300 k128 d104/8 full"})
    EXPECT_GT(splits(line), 1) << line;
  for (const char* line :
       {"bf16 b2 h32 q8192 k8192 d64 full",                                         // would save 2.5 %
        "bf16 b11 h18 q770 k130 d8/104 full", "f16 b12 h3 q775 k1400 d104/8 full",  // whole waves
        "bf16 b11 h18 q770 k130 d8 full", "bf16 b10 h30 q770 k16 d8 full", "bf16 b8 h16 q2048 k2048 d128 causal",
        "bf16 b1 h16 q16384 k16384 d128 window1024,0", "bf16 b1 h4 q2048 k2048 d128 full repro=run",
        "bf16 b1 h4 q2048 k2048 d128 full alibi", "bf16 b1 h4 q2048 k2048 d96 full",
        "bf16 b1 h4 q2048 k2048 d128 causal blocks128x128x600",
        "bf16 b1 h16 q16384 k16384 d128 full blocks128x128x600"})  // a third of a block per key tile
    EXPECT_EQ(splits(line), 1) << line;
}

// Idle warps prepare later heads if they can finish in time.
TEST_F(Sm90Backward, idle_warps_of_persistent_ctas_prepare_heads_where_many_rows_see_a_key) {
  const auto prepares = [](std::string_view line) { return chosen(line).prepares; };
  for (const char* line :
       {"bf16 b8 h32 q2048 k2048 d64 causal", "bf16 b4 h32 q4096 k4096 d64 causal", "f16 b8 h32 q2048 k2048 d40 full",
        "bf16 b8 h16 q2048 k2048 d128 causal", "bf16 b1 h16 q16384 k16384 d128 causal sink",
        "f16 b8 h16 q2048 k2048 d104 full", "bf16 b1 h16 q16384 k16384 d128 window1024,0",
        "bf16 b1 h32 q16384 k16384 d64 window1024,1024", "bf16 b16 h16 q1024 k1024 d128 full",
        "bf16 b1 h16 q16384 k16384 d128 full blocks128x128x13200",  // 825 rows see a key
        // From tests/cuda/attention/graph_test.cpp and verify/cases_tiles.cpp.
        "bf16 b10 h30 q770 k16 d8 full", "f16 b10 h30 q770 k16 d8/104 full", "f16 b5 h27 q770 k130 d16/8 full",
        "bf16 b9 h15 q775 k129 d8 full", "bf16 b5 h27 q770 k130 d8/104 full", "f16 b4 h8 q775 k1030 d8/104 full",
        "bf16 b11 h18 q770 k130 d8 full", "bf16 b11 h18 q770 k130 d8/104 full", "f16 b12 h3 q775 k1400 d104/8 full"})
    EXPECT_TRUE(prepares(line)) << line;
  for (const char* line :
       {"bf16 b16 h16 q1024 k1024 d128 causal", "bf16 b1 h16 q16384 k16384 d128 window512,0",  // few rows see a key
        "bf16 b1 h32 q32768 k32768 d64 full",     // not persistent
        "bf16 b4 h32/8 q4096 k4096 d128 full",    // GQA
        "bf16 b1 h20 q1024 k1024 d64 full",       // all heads are needed at once
        "bf16 b8 h16 q2048 k2048 d128 causal repro=run", "bf16 b8 h32 q2048 k2048 d64 causal repro=run",
        "bf16 b1 h16 q16384 k16384 d128 full blocks128x128x12000",  // 750 rows
        "bf16 b8 h16 q2048 k2048 d128 causal ragged"})
    EXPECT_FALSE(prepares(line)) << line;
}
TEST_F(Sm90Backward, kernels_that_are_others_have_other_numbers) {
  std::set<int> all;
  const auto lines = {"d128 full", "d128 full repro=run", "d128 full alibi", "d128 full ragged", "d256 full alibi",
                      "d128 full blocks128x128x900", "d64 full", "d64 full repro=run", "d256 full",
                      "d192 full", "d192/128 full", "d96 full"};
  for (const char* line : lines) all.insert(planned(join("backward bf16 b8 h16 q1024 k1024 ", line)).kernel);
  EXPECT_EQ(all.size(), lines.size());
}
TEST_F(Sm90Backward, idle_warps_that_prepare_need_a_count_for_each_head) {
  const auto bytes = [](const char* mask) {
    return planned(join("backward bf16 b8 h32 q2048 k2048 d64 ", mask)).workspace_bytes;
  };
  const size_t more = bytes("causal") - bytes("window512,0");
  EXPECT_GE(more, size_t(8 * 32 * 4));
  EXPECT_LT(more, size_t(8 * 32 * 4) + 512);
}

// No dQ sums in memory: only the statistics, and 64 bytes per query or key tile.
TEST_F(Sm90Backward, its_workspace_at_large_heads_is_two_numbers_a_row) {
  const size_t rows = 2 * 8 * 1024;
  const size_t bytes = planned("backward bf16 b2 h8/2 q1000 k700 d256/200 causal").workspace_bytes;
  EXPECT_GE(bytes, rows * 8);
  EXPECT_LT(bytes, rows * 8 + 4096);
}

TEST_F(Sm90Backward, a_fixed_order_and_options_take_kernels_of_their_own_and_an_order_a_count_for_32_rows) {
  for (const char* dim : {"64", "128"}) {
    const auto plan = [&](int len, const char* order) {
      return planned(join("backward bf16 b2 h8 q", len, " k", len, " d", dim, " window512,0", order));
    };
    EXPECT_NE(plan(1024, "").kernel, plan(1024, " repro=run").kernel);
    EXPECT_NE(plan(1024, "").kernel, plan(1024, " alibi").kernel);
    EXPECT_NE(plan(1024, " repro=run").kernel, plan(1024, " alibi repro=run").kernel);
    EXPECT_EQ(plan(1024, "").tile_q, plan(1024, " repro=run").tile_q);
    for (const int len : {1024, 4096, 65536}) {
      const size_t more = plan(len, " repro=run").workspace_bytes - plan(len, "").workspace_bytes;
      EXPECT_GE(more, size_t(2 * 8) * size_t(len) / 32 * 4);
      EXPECT_LT(more, size_t(2 * 8) * size_t(len) / 32 * 4 + 4096);
    }
  }
}

TEST_F(Sm90Backward, refuses_by_name_what_it_does_not_serve) {
  const struct { const char *line, *says; } cases[] = {
      {"forward bf16 b1 h1 q8 k8 d64 full", "computes a backward, not a forward"},
      {"backward bf16 b1 h1 q8 k8 d64 full blocks8x8x1 block_bias", "does not support the option block_bias"},
      {"backward bf16 b1 h1 q8 k8 d64 full bias.f64", "bias dtype f64 is not one of f32, f16, bf16"},
      {"backward bf16 b1 h1 q8 k8 d64 full paged16", "keys are linear or ragged, not paged"},
      {"backward bf16 b1 h1 q8 k8 d64 full blocks32x128x1",
       "blocks of a list have 64 or 128 queries and keys, not 32 x 128"},
      {"backward bf16 b1 h1 q8 k8 d256 full blocks128x256x1",
       "blocks of a list have 64 or 128 queries and keys, not 128 x 256"},
      {"backward bf16 b1 h1 q8 k8 d64 causal/16+31", "mask causal/16+31 is not full, causal or a window"},
      {"backward f32 b1 h1 q8 k8 d64 full", "dtype f32 is not one of f16, bf16"},
      {"backward bf16 b1 h1 q8 k8 d12 full", "dim 12 is not a multiple of 8 up to 256"},
      {"backward bf16 b1 h1 q8 k8 d136/140 full", "dim 140 is not a multiple of 8 up to 256"},
      {"backward bf16 b1 h1 q8 k8 d264 full", "dim 264 is not a multiple of 8 up to 256"},
      {"backward bf16/bf16/f32/f32 b1 h1 q8 k8 d64 full",
       "q is bf16 and out is f32; both must be the same"},
      {"backward bf16/bf16/bf16/f16 b1 h1 q8 k8 d64 full", "grad dtype f16 is neither bf16 nor f32"},
  };
  for (const auto& c : cases) EXPECT_EQ(answer(c.line), join("sm90_backward: ", c.says)) << c.line;
  EXPECT_EQ(answer("backward bf16 b1 h1 q8 k8 d64 full", "a100"),
            "sm90_backward: requires sm_90, but NVIDIA A100-SXM4-80GB is sm_80");
  EXPECT_EQ(answer("backward bf16 b1 h1 q268435457 k64 d64 full"),
            "sm90_backward: len_q is 268435457 and len_k is 64; lengths are at most 2^28");
  EXPECT_EQ(answer("backward bf16 b1 h1 q64 k268435457 d64 full"),
            "sm90_backward: len_q is 64 and len_k is 268435457; lengths are at most 2^28");
  // Rows are rounded up to whole tiles; transposed tiles may start at any row.
  for (const auto& [dim, blocks] : {std::pair{"64", "3276800000"}, {"128", "3328000000"}, {"256", "3276800000"}}) {
    const std::string line = join("backward bf16 b200000 h128 q8192 k8192 d", dim, " full");
    Plan plan{.problem = problem(line), .device = known("h200")};
    EXPECT_EQ(find_backend("sm90_backward")->shape(plan, Planner{.device = plan.device}).message,
              join("sm90_backward: needs ", blocks, " CTAs; a launch has at most 2^31 - 1")) << line;
  }
}

}  // namespace
}  // namespace attune
