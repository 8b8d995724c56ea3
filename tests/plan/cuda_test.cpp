// SPDX-License-Identifier: Apache-2.0
// Plans of the GPU backends on absent devices: supports and shape are pure, so no GPU is needed.
#include <gtest/gtest.h>

#include <set>

#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "plan/plan.h"
#include "tests/asked.h"

namespace attune {
namespace {

// The backend's refusal; "" if it accepts the problem.
std::string refusal(std::string_view line, const Device& d) {
  const Backend* b = find_backend("sm80_forward");
  return b->supports(problem(line), d).message;
}

Plan planned(std::string_view line, std::string_view device) {
  Plan plan;
  const Status s = Planner{.device = known(device), .forced = "sm80_forward"}.plan(problem(line), plan);
  EXPECT_TRUE(s.ok()) << line << " on " << device << ": " << s.message;
  return plan;
}

TEST(Cuda, a_gpu_that_is_not_here_is_refused_with_the_reason) {
  Device d;
  for (const char* word : {"cuda:x", "cuda:", "cuda:-1"})
    EXPECT_EQ(device_named(word, d).message,
              join("device '", word, "' is not cuda:# with the index of a GPU"));
  const std::string far = device_named("cuda:4000", d).message;
  EXPECT_TRUE(far.starts_with("device 'cuda:4000': ")) << far;
  EXPECT_EQ(known("h200").index, -1);
}

TEST(Cuda, a_build_without_gpu_code_says_so) {
  if (!cuda::built_for().empty()) GTEST_SKIP() << "this build has GPU code";
  Device d;
  EXPECT_EQ(device_named("cuda:0", d).message,
            "device 'cuda:0': this build of attune has no GPU code: it was left out, or nvcc was not there");
  EXPECT_EQ(find_backend("sm80_forward"), nullptr);
  // Planning requires no GPU, and reports the same; each of the built backends has another reason.
  const std::string absent = "\n  this build of attune has no GPU code: it was left out, or nvcc was not there";
  const Problem p = problem("forward bf16 b1 h8 q128 k128 d64 full");
  Plan plan;
  EXPECT_TRUE(Planner{.device = known("h200")}.plan(p, plan).message.ends_with(absent));
  EXPECT_EQ((Planner{.device = known("h200"), .forced = "sm80_forward"}.plan(p, plan).message),
            join("backend 'sm80_forward' is not one of ", backend_names(), absent));
  EXPECT_EQ((Planner{.device = d, .forced = "sm80_forward"}.plan(p, plan).message),
            join("backend 'sm80_forward' is not one of ", backend_names()));
}

// Machine code serves its own family from its version on; PTX serves everything later.
TEST(Cuda, a_gpu_that_the_build_has_no_code_for_is_told_what_it_has) {
  if (cuda::built_for().empty()) GTEST_SKIP() << "this build has no GPU code";
  EXPECT_EQ(cuda::has_code(52).message, join("this build of attune has GPU code for ", cuda::built_for(),
                                             ", but the GPU is sm_52; ATTUNE_CUDA_ARCHS selects what is built"));
  const bool ptx = cuda::built_for().find("PTX") != std::string_view::npos;
  EXPECT_EQ(cuda::has_code(999).ok(), ptx);
}

// Pure, so it holds in a build without GPU code too. On a GPU, cuda_standard would take the attention of such a call.
TEST(Cuda, a_reproducible_backward_of_adaptive_blocks_is_refused_in_one_sentence) {
  const auto answer = [](std::string_view pass, std::string_view repro, const Device& d) {
    const Problem p = problem(join(pass, " bf16 b1 h4/2 q512 k512 d64 causal", repro,
                                   " : adaptive block=64 density=0.5 hidden=32"));
    return find_backend("adaptive")->supports(p, d).message;
  };
  for (const char* repro : {" repro=run", " repro=batch"}) {
    for (const char* device : {"a100", "h200"})
      EXPECT_EQ(answer("backward", repro, known(device)),
                "adaptive: a backward on a GPU does not guarantee the order in which gradients of scores are summed; a "
                "reproducible one requires a CPU");
    EXPECT_EQ(answer("forward", repro, known("h200")), "");
    EXPECT_EQ(answer("backward", repro, this_cpu()), "");
  }
  EXPECT_EQ(answer("backward", "", known("h200")), "");
}

class Sm80Forward : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("sm80_forward")) GTEST_SKIP() << "this build has no GPU code";
  }
};

class Sm90Forward : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("sm90_forward")) GTEST_SKIP() << "this build has no GPU code for Hopper";
  }
  static std::string answer(std::string_view line, std::string_view device = "h200") {
    return find_backend("sm90_forward")->supports(problem(line), known(device)).message;
  }
  static std::string chosen(std::string_view line) {
    Plan plan;
    const Status s = Planner{.device = known("h200")}.plan(problem(line), plan);
    return s.ok() ? std::string(plan.backend->name) : s.message;
  }
  static Plan planned(std::string_view line) {
    Plan plan;
    const Status s = Planner{.device = known("h200"), .forced = "sm90_forward"}.plan(problem(line), plan);
    EXPECT_TRUE(s.ok()) << line << ": " << s.message;
    return plan;
  }
};

TEST_F(Sm90Forward, is_the_first_link_for_plain_problems_that_fill_the_gpu) {
  EXPECT_EQ(chosen("forward bf16 b8 h16 q2048 k2048 d128 causal"), "sm90_forward");
  EXPECT_EQ(chosen("forward f16 b2 h32/8 q4096 k4096 d64 window1023,0"), "sm90_forward");
  EXPECT_EQ(chosen("forward f16/f16/f32 b2 h32/8 q4096 k4096 d192/128 full accumulate"), "sm90_forward");
  EXPECT_EQ(chosen("forward bf16 b2 h64/8 q4096 k4096 d64 window127,0 sink"), "sm90_forward");
  EXPECT_EQ(chosen("forward bf16 b16 h16 q8192 k8192 d128 causal ragged"), "sm90_forward");
  EXPECT_EQ(chosen("forward bf16 b1 h16 q16384 k16384 d64 full blocks128x128x99999"), "sm90_forward");
  for (const char* line : {"d64 full", "d64 causal", "d128 full", "d128 causal", "d192 full", "d192/128 full",
                          "d256 full", "d256 causal"})  // stream-K over few query tiles
    EXPECT_EQ(chosen(join("forward bf16 b1 h2 q128 k8192 ", line)), "sm90_forward") << line;
  EXPECT_EQ(chosen("forward bf16 b1 h2 q128 k8192 d128 full sink"), "sm80_forward");  // split-KV
  EXPECT_EQ(chosen("forward bf16 b1 h2 q128 k8192 d256 full ragged"), "sm80_forward");
  EXPECT_EQ(chosen("forward bf16/bf16/f32 b1 h2 q512 k4096 d128 causal"), "sm90_forward");  // split over warpgroups
  EXPECT_EQ(chosen("forward bf16/bf16/f32 b1 h2 q512 k16384 d128 causal"), "sm80_forward");
  EXPECT_EQ(chosen("forward bf16 b16 h32/8 q1 k8192 d128 full"), "sm80_forward");
}

TEST_F(Sm90Forward, takes_the_narrowest_kernel_that_holds_both_head_dims) {
  const auto plan = [](std::string_view line) {
    const Plan plan = planned(line);
    return plan;
  };
  const auto kernel = [&](std::string_view dims) {
    return plan(join("forward bf16 b8 h16 q1024 k1024 d", dims, " full")).kernel;
  };
  EXPECT_EQ(kernel("8"), kernel("64"));
  EXPECT_EQ(kernel("72/40"), kernel("96"));
  EXPECT_EQ(kernel("96/104"), kernel("128"));
  EXPECT_EQ(kernel("136/128"), kernel("192/128"));
  EXPECT_EQ(kernel("128/136"), kernel("192"));
  EXPECT_EQ(kernel("200/8"), kernel("256"));
  std::set<int> all;
  for (const char* dims : {"64", "96", "128", "192/128", "192", "256"}) all.insert(kernel(dims));
  EXPECT_EQ(all.size(), 6u);
  EXPECT_EQ(plan("forward bf16 b8 h16 q1024 k1024 d192/128 full").tile_k, 128);
  EXPECT_EQ(plan("forward bf16 b8 h16 q1024 k1024 d192 full").tile_k, 96);
}

TEST_F(Sm90Forward, windows_of_some_hundred_keys_have_tiles_of_64_keys_at_d128) {
  const auto keys = [](std::string_view line) {
    const Plan plan = planned(line);
    return plan.tile_k;
  };
  EXPECT_EQ(keys("forward bf16 b1 h16 q16384 k16384 d128 window511,0"), 64);
  EXPECT_EQ(keys("forward f16 b8 h16 q2048 k2048 d104 window200,200 ragged"), 64);
  EXPECT_EQ(keys("forward bf16 b1 h16 q16384 k16384 d128 window127,0"), 128);
  EXPECT_EQ(keys("forward bf16 b1 h16 q16384 k16384 d128 window4095,0"), 128);
  EXPECT_EQ(keys("forward bf16 b16 h16 q1024 k1024 d128 window511,0"), 128);
  EXPECT_EQ(keys("forward bf16 b1 h1 q16384 k16384 d128 window511,0"), 128);
  EXPECT_EQ(keys("forward bf16/bf16/f32 b1 h16 q16384 k16384 d128 window511,0"), 128);
}

TEST_F(Sm90Forward, has_room_for_parts_where_the_last_tiles_of_a_long_full_mask_are_shared) {
  const auto megabytes = [](std::string_view line) {
    const Plan plan = planned(line);
    return plan.workspace_bytes >> 20;
  };
  EXPECT_EQ(megabytes("forward bf16 b1 h16 q16384 k16384 d128 full"), 13);  // 68 tiles and 132 CTAs, 68 KB per part
  EXPECT_EQ(megabytes("forward bf16 b1 h16 q16384 k16384 d128 causal"), 0);
  EXPECT_EQ(megabytes("forward bf16 b1 h16 q16384 k16384 d128 full sink"), 0);
  EXPECT_EQ(megabytes("forward bf16 b32 h16 q512 k512 d128 full"), 0);     // too few keys
  EXPECT_EQ(megabytes("forward bf16 b1 h33 q16384 k16384 d128 full"), 0);  // no tiles remain in the last wave
}

TEST_F(Sm90Forward, warpgroups_share_queries_where_tiles_are_few) {
  struct Tiles { int q, k, splits; bool operator==(const Tiles&) const = default; };
  const auto tiles = [](std::string_view line) {
    const Plan plan = planned(line);
    return Tiles{plan.tile_q, plan.tile_k, plan.splits};
  };
  const Tiles four{64, 64, 4}, two{64, 64, 2}, plain{128, 128, 1};
  EXPECT_EQ(tiles("forward bf16 b1 h8 q1024 k1024 d64 causal"), four);  // 64 tiles of 128 queries, up to 8 steps each
  EXPECT_EQ(tiles("forward bf16 b1 h8 q1024 k1024 d64 causal sink"), plain);
  EXPECT_EQ(tiles("forward bf16 b1 h8 q1024 k1024 d96 causal"), two);
  EXPECT_EQ(tiles("forward bf16 b1 h8 q1024 k1024 d192/128 causal"), plain);
  EXPECT_EQ(tiles("forward bf16 b4 h16 q16384 k16384 d128 causal"), plain);
  // Eight tiles of 128 queries with 128 steps each: eight steps per SM with stream-K over all keys.
  EXPECT_EQ(tiles("forward bf16 b1 h8 q128 k16384 d128 full"), (Tiles{128, 128, 16}));
  EXPECT_EQ(tiles("forward bf16 b1 h8 q128 k16384 d128 full sink"), plain);
  EXPECT_EQ(tiles("forward bf16 b1 h8 q128 k1024 d128 full"), two);
  EXPECT_EQ(tiles("forward bf16 b1 h8 q512 k4096 d256 full"), (Tiles{128, 64, 4}));
  EXPECT_GT(planned("forward bf16 b1 h8 q128 k16384 d128 full").workspace_bytes, size_t(8) << 20);
  // 1024 tiles if every query head has its own, 128 if a GQA group of eight is packed into one.
  EXPECT_EQ(tiles("forward bf16 b16 h64 q16 k512 d64 full").q, 64);
  EXPECT_EQ(tiles("forward bf16 b16 h64/8 q16 k512 d64 full"), plain);
}

// 192 queries per tile, with three warpgroups: if there are enough keys and tiles, and the last tile is not mostly
// empty.
TEST_F(Sm90Forward, narrow_heads_have_tiles_of_192_queries_where_they_pay) {
  const auto tile_q = [](std::string_view line) {
    const Plan plan = planned(line);
    return plan.tile_q;
  };
  for (const char* line : {"forward bf16 b8 h16 q4096 k4096 d64 full", "forward bf16 b8 h16 q4096 k512 d64 full",
                           "forward f16 b8 h16 q4096 k4096 d64 causal", "forward bf16 b8 h16 q4096 k2048 d40/64 causal",
                           "forward bf16 b8 h16 q4096 k4096 d64 full sink",
                           "forward bf16 b1 h12 q2048 k2048 d64 full"})  // few tiles, and one wave less
    EXPECT_EQ(tile_q(line), 192) << line;
  for (const char* line :
       {"forward bf16 b8 h16 q4096 k511 d64 full", "forward bf16 b8 h16 q4096 k2047 d64 causal",  // few keys
        // Two waves with either size:
        "forward bf16 b1 h8 q4096 k4096 d64 full",
        "forward bf16 b64 h16 q256 k4096 d64 full",  // 384 rows instead of 256
        "forward bf16 b8 h16 q4096 k4096 d96 full", "forward bf16/bf16/f32 b8 h16 q4096 k4096 d64 full",
        "forward bf16 b8 h16 q4096 k4096 d64 full softcap",
        "forward bf16 b8 h16 q4096 k4096 d64 full blocks128x128x99999"})
    EXPECT_EQ(tile_q(line), 128) << line;
}

// Separate kernels for each of three head dims; every kernel supports a sink and accumulation.
TEST_F(Sm90Forward, options_that_change_scores_have_kernels_of_their_own) {
  const auto kernel = [](std::string_view line) {
    const Plan plan = planned(line);
    return plan.kernel;
  };
  for (const char* option : {"softcap", "alibi", "bias", "bias.bf16", "bias.f16", "dropout"}) {
    EXPECT_EQ(chosen(join("forward bf16 b8 h16 q2048 k2048 d128 causal ", option)), "sm90_forward");
    EXPECT_EQ(kernel(join("forward bf16 b8 h16 q4096 k4096 d64 full ", option)),
              kernel("forward bf16 b8 h16 q4096 k4096 d40 full softcap"));
    EXPECT_NE(kernel(join("forward bf16 b8 h16 q4096 k4096 d64 full ", option)),
              kernel("forward bf16 b8 h16 q4096 k4096 d64 full sink"));
    EXPECT_EQ(kernel(join("forward bf16 b8 h16 q4096 k4096 d96 full ", option)),
              kernel("forward bf16/bf16/f32 b8 h16 q4096 k4096 d128 full softcap sink accumulate"));
    EXPECT_EQ(kernel(join("forward f16 b8 h16 q4096 k4096 d192/128 full ", option)),
              kernel("forward bf16 b8 h16 q4096 k4096 d256 full softcap"));
  }
  EXPECT_EQ(kernel("forward bf16 b8 h16 q4096 k4096 d64 full sink"),
            kernel("forward bf16 b8 h16 q4096 k4096 d64 full"));
}

TEST_F(Sm90Forward, lists_of_smaller_blocks_and_lists_with_options_have_key_tiles_of_64) {
  const auto tile = [](std::string_view blocks) {
    Plan plan;
    const std::string line = join("forward bf16 b1 h16 q16384 k16384 d128 full blocks", blocks);
    const Status s = Planner{.device = known("h200")}.plan(problem(line), plan);
    EXPECT_TRUE(s.ok()) << s.message;
    EXPECT_EQ(plan.backend->name, "sm90_forward") << line;
    return plan.tile_k;
  };
  EXPECT_EQ(tile("128x128x99999"), 128);
  for (const char* blocks : {"64x64x99999", "64x128x99999", "128x64x99999", "128x128x99999 softcap",
                             "64x64x99999 alibi bias dropout"})
    EXPECT_EQ(tile(blocks), 64) << blocks;
}

TEST_F(Sm90Forward, a_plan_says_in_words_how_tiles_are_found) {
  const auto words = [](std::string_view line) {
    const Plan plan = planned(line);
    return plan.backend->describe(plan);
  };
  const struct { const char *line, *words; } cases[] = {
      {"forward bf16 b8 h16 q2048 k2048 d128 causal",
       "kernel d128, 128 x 128 tiles, 2 warpgroups, persistent; longest tiles first"},
      {"forward bf16 b8 h16 q2048 k2048 d192/128 full",
       "kernel d192/128, 128 x 128 tiles, 2 warpgroups, persistent; tiles from a counter"},
      {"forward bf16 b32 h16 q512 k512 d128 full softcap",
       "kernel d128 with options, 128 x 128 tiles, 2 warpgroups, persistent; static tiles"},
      {"forward bf16 b1 h11 q2048 k8192 d128 full",
       "kernel d128, 128 x 128 tiles, 2 warpgroups, persistent; stream-K over the last 44 of 176 tiles"},
      {"forward bf16 b1 h2 q128 k8192 d128 full",
       "kernel d128, 128 x 128 tiles, 2 warpgroups, persistent; stream-K over all 2 tiles"},
      {"forward bf16 b8 h32/8 q32 k4096 d128 full",
       "kernel d128, 128 x 128 tiles, 2 warpgroups, persistent; tiles from a counter, 4 heads of a GQA group per tile"},
      {"forward bf16 b16 h16 q8192 k8192 d128 causal ragged",
       "kernel d128, 128 x 128 tiles, 2 warpgroups, persistent; tile table, longest tiles first"},
      {"forward bf16 b1 h16 q16384 k16384 d128 full blocks64x64x99999 softcap",
       "kernel d128 with block lists and options, 128 x 64 tiles, 2 warpgroups, persistent; tile table, longest tiles "
       "first"},
      {"forward bf16/bf16/f32 b1 h2 q512 k4096 d128 causal",
       "split-KV kernel, 2 warpgroups share the keys; calls that it does not serve: kernel d128, 128 x 128 tiles, 2 "
       "warpgroups, persistent; longest tiles first"},
  };
  for (const auto& c : cases) EXPECT_EQ(words(c.line), c.words) << c.line;
}

// The refusal of shape, unless the backend is forced: the next backend is faster, or a limit is exceeded.
TEST_F(Sm90Forward, leaves_what_is_too_few_and_too_many_to_the_next_link_and_says_so) {
  const auto says = [](std::string_view line, std::string_view forced = "") {
    Plan plan{.backend = find_backend("sm90_forward"), .problem = problem(line), .device = known("h200")};
    const Status s = plan.backend->supports(plan.problem, plan.device);
    return s.ok() ? plan.backend->shape(plan, Planner{.device = plan.device, .forced = forced}).message : s.message;
  };
  const struct { const char *line, *says; bool always = false; } cases[] = {
      {"forward bf16 b1 h8 q1024 k1024 d128 causal softcap",
       "64 query tiles leave most of 132 SMs idle, and their keys cannot be split here"},
      {"forward bf16/bf16/f32 b1 h2 q512 k16384 d64 full",
       "8 query tiles over 16384 keys cannot be split here; sm80_forward is estimated to be faster"},
      {"forward bf16 b32 h8 q64 k64 d64 full",
       "64 rows per KV head do not fill a tile of 128; sm80_forward is faster"},
      {"forward bf16 b200000 h128 q128 k128 d64 full", "25600000 query tiles are over 2^24 - 1", true},
      {"forward bf16 b1 h1 q268435457 k64 d64 full", "length 268435457 is over 2^28", true},
      {"forward bf16 b1 h1 q64 k268435457 d64 full", "length 268435457 is over 2^28", true},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(says(c.line), join("sm90_forward: ", c.says)) << c.line;
    EXPECT_EQ(says(c.line, "sm90_forward"), c.always ? join("sm90_forward: ", c.says) : "") << c.line;
  }
}

TEST_F(Sm90Forward, refuses_by_name_what_it_does_not_serve) {
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full", "a100"),
            "sm90_forward: requires sm_90, but NVIDIA A100-SXM4-80GB is sm_80");
  EXPECT_EQ(answer("backward bf16 b1 h1 q8 k8 d64 full"), "sm90_forward: computes a forward, not a backward");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full append"), "sm90_forward: does not support the option append");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full bias.f64"),
            "sm90_forward: bias dtype f64 is not one of f32, f16, bf16");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 causal@absolute alibi dropout"), "");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full paged16"),
            "sm90_forward: keys are paged; they must be linear or ragged");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full blocks32x128x1"),
            "sm90_forward: blocks of a list are 32 x 128; they must have 64 or 128 queries and keys");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full blocks64x128x1"), "");
  EXPECT_EQ(answer("forward bf16/bf16/f32 b1 h1 q8 k8 d64 full blocks128x128x1"), "");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 causal/16+31"),
            "sm90_forward: mask causal/16+31 is not full, causal or a window");
  EXPECT_EQ(answer("forward f32 b1 h1 q8 k8 d64 full"), "sm90_forward: dtype f32 is not one of f16, bf16");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d68 full"), "sm90_forward: dim 68 is not a multiple of 8 up to 256");
  EXPECT_EQ(answer("forward bf16 b1 h1 q8 k8 d64 full repro=batch"),
            "sm90_forward: does not support repro=batch: bits may depend on the batch");
  EXPECT_EQ(answer("forward bf16/f16/bf16 b1 h1 q8 k8 d64 full"),
            "sm90_forward: q is bf16 and kv is f16; both must be the same");
  EXPECT_EQ(answer("forward bf16/bf16/f16 b1 h1 q8 k8 d64 full"),
            "sm90_forward: out dtype f16 is neither bf16 nor f32");
}

TEST_F(Sm80Forward, takes_what_it_serves_on_every_gpu_from_ampere_on) {
  for (const char* device : {"a100", "a10g", "rtx3090", "l4", "rtx4090", "h100", "h200"})
    for (const char* line : {"forward bf16 b4 h32/8 q4096 k4096 d128 causal", "forward f16 b1 h2 q31 k129 d8 full",
                             "forward bf16 b2 h4 q128 k128 d256 window64,0",
                             "forward f16 b2 h4 q128 k128 d192 full softcap",
                             "forward bf16 b8 h32/8 q1 k8192 d128 full paged64",
                             "forward bf16 b2 h4 q128 k128 d192/128 causal"}) {
      EXPECT_EQ(refusal(line, known(device)), "") << line << " on " << device;
      planned(line, device);
    }
}

TEST_F(Sm80Forward, refuses_by_name_what_it_does_not_serve) {
  const Device h200 = known("h200");
  EXPECT_EQ(refusal("forward bf16 b1 h1 q8 k8 d64 full", known("t4")),
            "sm80_forward: requires sm_80 or later, but Tesla T4 is sm_75");
  EXPECT_EQ(refusal("forward bf16 b1 h1 q8 k8 d64 full", Device{.name = "AMD EPYC"}),
            "sm80_forward: requires a GPU, but AMD EPYC is a CPU");
  EXPECT_EQ(refusal("backward bf16 b1 h1 q8 k8 d64 full", h200), "sm80_forward: computes a forward, not a backward");
  EXPECT_EQ(refusal("forward f32 b1 h1 q8 k8 d64 full", h200), "sm80_forward: dtype f32 is not one of f16, bf16");
  EXPECT_EQ(refusal("forward bf16 b1 h1 q8 k8 d68 full", h200),
            "sm80_forward: dim 68 is not a multiple of 8 up to 256");
  EXPECT_EQ(refusal("forward bf16 b1 h1 q8 k8 d264 full", h200),
            "sm80_forward: dim 264 is not a multiple of 8 up to 256");
  EXPECT_EQ(refusal("forward bf16 b1 h1 q1 k8 d64 full descale", h200),
            "sm80_forward: does not support the option descale");
}

TEST_F(Sm80Forward, splits_the_keys_where_the_grid_is_small) {
  EXPECT_EQ(planned("forward bf16 b8 h16 q2048 k2048 d128 causal", "h200").splits, 1);
  EXPECT_EQ(planned("forward bf16 b8 h16 q2048 k2048 d128 causal", "h200").workspace_bytes, 0u);
  const Plan decode = planned("forward bf16 b1 h32/8 q1 k8192 d128 full", "h200");
  EXPECT_GT(decode.splits, 8);
  EXPECT_GE(decode.workspace_bytes, size_t(decode.splits) * 32 * (128 + 1) * 4);
  EXPECT_EQ(planned("forward bf16 b1 h32/8 q1 k200 d128 full", "h200").splits, 1) << "too few keys to share";
  EXPECT_EQ(planned("forward bf16 b1 h4 q64 k65536 d64 window128,0", "h200").splits, 1) << "a window sees few";
}

// A tile lies within one block: 128 rows would be half empty in a block of 64.
TEST_F(Sm80Forward, tiles_are_not_larger_than_the_blocks_of_a_list) {
  for (const char* dim : {"d64", "d128"}) {
    const auto tile = [&](const char* blocks) {
      const Plan plan = planned(join("forward bf16 b1 h16 q16384 k16384 ", dim, " full", blocks), "h200");
      return std::pair(plan.tile_q, plan.tile_k);
    };
    EXPECT_EQ(tile(" blocks64x64x65536"), std::pair(64, 64)) << dim;
    EXPECT_EQ(tile(" blocks128x128x65536").first, 128) << dim;
    EXPECT_EQ(tile(" blocks128x128x65536"), tile("")) << dim;
  }
}

// The faster choice on an H200.
TEST_F(Sm80Forward, short_sequences_and_narrow_windows_have_tiles_of_fewer_rows) {
  const auto tile = [](std::string_view line) {
    const Plan plan = planned(line, "h200");
    return std::pair(plan.tile_q, plan.tile_k);
  };
  EXPECT_EQ(tile("forward bf16 b32 h32 q512 k512 d64 causal"), std::pair(64, 64));
  EXPECT_EQ(tile("forward bf16 b16 h32 q1024 k1024 d64 causal"), std::pair(128, 128));
  EXPECT_EQ(tile("forward bf16 b32 h16 q512 k512 d128 causal"), std::pair(128, 64));
  EXPECT_EQ(tile("forward bf16 b32 h32 q512 k512 d64 full"), std::pair(64, 128));
  EXPECT_EQ(tile("forward bf16 b32 h32 q512 k512 d64 full repro=batch"), std::pair(128, 128)) << "a bound of the batch";
  EXPECT_EQ(tile("forward bf16 b32 h32 q512 k513 d64 full"), std::pair(128, 128));
  EXPECT_EQ(tile("forward bf16 b32 h32 q512 k512 d64 full softcap"), std::pair(128, 64)) << "no other with options";
  EXPECT_EQ(tile("forward bf16 b1 h16 q16384 k16384 d128 window2047,0"), std::pair(64, 64));
  EXPECT_EQ(tile("forward bf16 b1 h16 q16384 k16384 d128 window2047,0 repro=batch"), std::pair(64, 64));
  EXPECT_EQ(tile("forward bf16 b1 h16 q16384 k16384 d128 window2048,0"), std::pair(128, 64));
  EXPECT_EQ(tile("forward bf16 b1 h16 q16384 k16384 d64 window1023,0"), std::pair(128, 128));
}

// The bits of a row must not depend on the other sequences, neither on their number nor on the longest. A sequence with
// few queries goes to the decode kernels, with fixed-size splits, also next to one with many queries.
TEST_F(Sm80Forward, reproducible_by_batch_takes_one_way_for_every_length_of_the_others) {
  const Plan many = planned("forward bf16 b1 h32/8 q17 k128 d128 full repro=batch", "h200");
  const Plan others = planned("forward bf16 b64 h32/8 q512 k65536 d128 full repro=batch", "h200");
  EXPECT_EQ(many.kernel, others.kernel);
  EXPECT_EQ(many.tile_k, others.tile_k);
  EXPECT_EQ(many.splits, 1);
  EXPECT_EQ(others.splits, 1);
  EXPECT_EQ(many.workspace_bytes, 0u) << "128 keys are one part";
  const size_t rows_of_few = 64 * 32 * 16;
  EXPECT_GE(others.workspace_bytes, 32 * rows_of_few * (128 + 1) * 4) << "room for the parts of those that have few";
  const Plan decode = planned("forward bf16 b1 h32/8 q1 k128 d128 full repro=batch", "h200");
  const Plan fews = planned("forward bf16 b64 h32/8 q16 k65536 d128 full repro=batch", "h200");
  EXPECT_EQ(decode.kernel, fews.kernel);
  EXPECT_EQ(decode.tile_q, fews.tile_q);
  EXPECT_EQ(decode.tile_k, fews.tile_k);
  EXPECT_NE(decode.tile_q, many.tile_q);
  EXPECT_EQ(decode.splits, 1);
  EXPECT_EQ(planned("forward bf16 b1 h32/8 q1 k1025 d128 full repro=batch", "h200").splits, 3);
  EXPECT_EQ(planned("forward bf16 b1 h32/8 q1 k1025 d128 full repro=batch", "l4").splits, 3) << "whatever the GPU";
  EXPECT_EQ(planned("forward bf16 b9 h32/8 q1 k1025 d128 full repro=batch", "h200").splits, 3);
  EXPECT_EQ(planned("forward bf16 b9 h32/8 q1 k65536 d128 window1000,0 repro=batch", "h200").splits, 3);
  EXPECT_EQ(planned("forward bf16 b1 h32/8 q1 k1000000 d128 full repro=batch", "h200").splits, 32);
}

TEST_F(Sm80Forward, few_queries_go_to_the_decode_kernels) {
  const auto rows = [](std::string_view line) { return planned(line, "h200").tile_q; };
  EXPECT_EQ(rows("forward bf16 b1 h32/8 q1 k8192 d128 full"), 16);
  EXPECT_EQ(rows("forward f16 b1 h32/8 q4 k8192 d64 causal paged1"), 16);
  EXPECT_EQ(rows("forward bf16 b1 h64/1 q1 k8192 d192/128 full sink"), 16) << "four blocks of rows";
  EXPECT_EQ(rows("forward f16 b1 h32/8 q5 k8192 d64 causal paged1"), 64) << "20 rows of (position, head)";
  EXPECT_EQ(rows("forward f16 b1 h32/8 q5 k8192 d128 full repro=batch"), 16) << "whatever the longest has";
  EXPECT_GT(rows("forward bf16 b1 h32/8 q17 k8192 d128 full"), 64) << "68 rows";
  EXPECT_GT(rows("forward bf16 b1 h65/1 q1 k8192 d128 full"), 16);
  EXPECT_GT(rows("forward bf16 b1 h32/8 q1 k8192 d128 full softcap"), 16) << "the general policy";
  EXPECT_GT(rows("forward bf16 b1 h32/8 q1 k8192 d128 full blocks64x64x100"), 16);
}

// Splits fill the SMs in whole waves, and there are no more than pay for the combine.
TEST_F(Sm80Forward, decode_splits_fill_the_gpu) {
  const auto splits = [](std::string_view line) { return planned(line, "h200").splits; };
  EXPECT_EQ(splits("forward bf16 b1 h32/8 q1 k8192 d128 full"), 16) << "8 * 16 blocks on 132 multiprocessors";
  EXPECT_EQ(splits("forward bf16 b16 h32/8 q1 k8192 d128 full"), 1);
  EXPECT_EQ(splits("forward bf16 b64 h32/8 q1 k8192 d128 full"), 1);
  EXPECT_EQ(splits("forward bf16 b64 h32/8 q1 k8192 d128 full paged16"), 1);
  EXPECT_EQ(splits("forward bf16 b1 h1 q1 k1048576 d128 full"), 128);
  EXPECT_LE(splits("forward bf16 b1 h32/8 q1 k1048576 d128 window511,0"), 4) << "512 keys";
}

TEST_F(Sm80Forward, a_gpu_with_less_shared_memory_gets_no_larger_tile) {
  for (const char* dims : {"d64", "d96", "d128", "d192", "d192/128", "d256"})
    for (const char* options : {"", " softcap"}) {
      const std::string line = join("forward bf16 b8 h16 q2048 k2048 ", dims, " causal", options);
      const Plan large = planned(line, "h200"), little = planned(line, "l4");
      EXPECT_LE(little.tile_q * little.tile_k, large.tile_q * large.tile_k) << line;
    }
}

TEST_F(Sm80Forward, the_narrowest_kernel_that_holds_the_dims_is_taken) {
  EXPECT_EQ(planned("forward bf16 b8 h16 q2048 k2048 d8 full", "h200").kernel,
            planned("forward bf16 b8 h16 q2048 k2048 d64 full", "h200").kernel);
  EXPECT_NE(planned("forward bf16 b8 h16 q2048 k2048 d72 full", "h200").kernel,
            planned("forward bf16 b8 h16 q2048 k2048 d64 full", "h200").kernel);
  EXPECT_NE(planned("forward bf16 b8 h16 q2048 k2048 d192 full", "h200").kernel,
            planned("forward bf16 b8 h16 q2048 k2048 d192/128 full", "h200").kernel);
}

}  // namespace
}  // namespace attune
