// SPDX-License-Identifier: Apache-2.0
// The chain of GPU backends on absent devices, over every conformance case: some backend accepts it, refusals are
// sentences, and plans are sane and pure. For single backends see cuda_test.cpp and gpu_chain_test.cpp.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "core/formula/of_problem.h"
#include "tests/asked.h"
#include "verify/compare.h"

namespace attune {
namespace {

constexpr const char* kGpus[] = {"t4", "a100", "a10g", "l4", "rtx4090", "h200"};

class CudaChain : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("cuda_standard")) GTEST_SKIP() << "this build has no GPU code";
    for (const Backend* b : backends())
      if (!b->only_by_name && !b->name.starts_with("cpu_")) gpu_.push_back(b);  // including compositions
  }
  // Plans with the planner's choice; returns "" or all refusals.
  std::string refusals(const Problem& p, const Device& d, Plan& plan) const {
    return Planner{.device = d}.plan(p, plan).message;
  }

  std::vector<const Backend*> gpu_{};
};

TEST_F(CudaChain, a_refusal_is_one_sentence_that_begins_with_who_refuses) {
  for (const char* word : kGpus)
    for (const Case& c : cases())
      for (const Backend* b : gpu_) {
        Plan plan{.backend = b, .problem = c.problem, .device = known(word)};
        Status s = b->supports(c.problem, plan.device);
        if (s.ok()) s = b->shape(plan, Planner{.device = plan.device});
        if (s.ok()) continue;
        ASSERT_TRUE(s.message.starts_with(join(b->name, ": "))) << s.message;
        ASSERT_GT(s.message.size(), b->name.size() + 12) << s.message;
        ASSERT_EQ(s.message.find_first_of("\n\t"), s.message.npos) << s.message;
        ASSERT_NE(s.message.back(), '.') << s.message;
      }
}

TEST_F(CudaChain, nobody_runs_on_a_cpu_or_on_a_gpu_before_turing) {
  Device volta = known("t4");
  volta.arch = 70, volta.name = "NVIDIA V100";
  for (const Backend* b : gpu_)
    for (const char* line : {"forward f16 b1 h1 q8 k8 d64 full", "backward f16 b1 h1 q8 k8 d64 full",
                             "forward f32 b1 h1 q8 k8 d64 full precision=tf32"}) {
      EXPECT_FALSE(b->supports(problem(line), Device{.name = "a CPU"}).ok()) << b->name;
      EXPECT_FALSE(b->supports(problem(line), volta).ok()) << b->name;
    }
}

// GPUs after Hopper: the Ampere kernels serve them, and kernels with Hopper instructions refuse.
TEST_F(CudaChain, later_gpus_take_what_ampere_takes) {
  for (const int arch : {100, 103, 120}) {
    Device later = known("h200");
    later.arch = arch, later.name = "a later GPU";
    for (const char* line : {"forward bf16 b8 h16 q2048 k2048 d128 causal", "forward f16 b1 h8/1 q1 k4096 d256 full",
                             "backward bf16 b8 h16 q2048 k2048 d128 causal", "backward f16 b2 h8 q512 k512 d256 full",
                             "forward f32 b2 h8 q512 k512 d256 full precision=tf32"}) {
      Plan plan;
      EXPECT_EQ((Planner{.device = later}).plan(problem(line), plan).message, "") << arch;
      EXPECT_TRUE(plan.backend->name.starts_with("sm80_")) << plan.backend->name << ": " << line;
    }
    for (const char* who : {"sm90_forward", "sm90_backward"}) {
      const Backend* b = find_backend(who);
      if (!b) continue;  // not built for Hopper
      EXPECT_EQ(b->supports(problem("forward bf16 b8 h16 q2048 k2048 d128 causal"), later).message,
                join(who, ": requires sm_90, but a later GPU is sm_", arch));
    }
  }
}

// From Ampere on, the chain serves everything that some kernel implements; on Turing, dense attention except bf16.
TEST_F(CudaChain, somebody_takes_every_case) {
  for (const char* word : kGpus) {
    const Device d = known(word);
    std::set<std::string> refused;
    for (const Case& c : cases()) {
      const Problem& p = c.problem;
      if (!golden_supports(p).ok() || p.has(Option::descale)) continue;
      if (d.arch < 80 && (p.dtype.q == DType::bf16 || p.has(Option::append) || p.variant.text[0])) continue;
      // cuda_standard, the only backend for these, gives no reproducibility guarantee.
      const bool only_standard = d.arch < 80 || p.dtype.q == DType::f32 || p.dim_qk % 8 || p.dim_v % 8;
      if (only_standard && p.reproducible == Reproducible::batch) continue;
      const bool biased = p.has(Option::bias) || p.has(Option::block_bias);
      if (p.pass == Pass::backward && biased && p.reproducible != Reproducible::no) continue;
      Plan plan;
      const std::string why = refusals(p, d, plan);
      if (has_formula(p)) EXPECT_NE(why, "") << word << ": " << name(c);  // CPUs and the reference only
      else if (!why.empty()) refused.insert(why);
    }
    EXPECT_TRUE(refused.empty()) << word << ": " << refused.size() << " refused, as " << *refused.begin();
  }
}

TEST_F(CudaChain, plans_are_sane_and_the_same_each_time) {
  for (const char* word : kGpus) {
    const Device d = known(word);
    for (const Case& c : cases())
      for (const Backend* b : gpu_) {
        Plan plan, again;
        if (!plan_on(*b, c.problem, d, plan).ok()) continue;
        ASSERT_TRUE(plan_on(*b, c.problem, d, again).ok());
        const std::string who = join(b->name, " on ", word, ": ", name(c));
        ASSERT_GT(plan.tile_q, 0) << who;
        ASSERT_GT(plan.tile_k, 0) << who;
        ASSERT_GE(plan.splits, 1) << who;
        ASSERT_LE(plan.splits, c.problem.len_k) << who;
        ASSERT_LT(plan.workspace_bytes, size_t(1) << 30) << who;
        ASSERT_EQ(std::tuple(plan.kernel, plan.tile_q, plan.tile_k, plan.splits, plan.workspace_bytes),
                  std::tuple(again.kernel, again.tile_q, again.tile_k, again.splits, again.workspace_bytes))
            << who;
      }
  }
}

// The fused kernels, at every head dim with separate kernels: doubling the length at most doubles the workspace. A
// forward with stream-K adds two parts of 128 rows per SM, independent of the length.
TEST_F(CudaChain, fused_kernels_need_memory_in_proportion_to_the_length) {
  std::vector<std::string> rests;
  for (const char* dim : {" d64 ", " d96 ", " d128 ", " d192 ", " d192/128 ", " d256 "})
    for (const char* rest : {"causal", "full softcap", "causal repro=run", "full repro=run", "causal repro=batch"})
      rests.push_back(join(dim, rest));
  for (const char* first : {"forward f16 b4 h16 q", "forward f16 b1 h64/8 q", "forward f32 b4 h16 q",
                            "backward f16 b4 h16 q", "backward f16 b1 h64/8 q", "backward f32 b4 h16 q"})
    for (const std::string& rest : rests)
      for (const Backend* b : gpu_) {
        if (!b->name.starts_with("sm")) continue;
        const size_t more = first[0] == 'f' ? size_t(2) * 132 * 128 * 260 * 4 : 4096;
        size_t bytes[3] = {};
        bool all = true;
        for (int n = 0; n < 3; ++n) {
          const int len = 4096 << n;
          const std::string line = join(first, len, " k", len, rest);
          Problem p = problem(line);
          if (p.dtype.q == DType::f32) p.precision = Precision::tf32x3;
          Plan plan;
          all &= plan_on(*b, p, known("h200"), plan).ok();
          bytes[n] = plan.workspace_bytes;
        }
        for (int n = 1; all && n < 3; ++n)
          EXPECT_LE(bytes[n], 2 * bytes[n - 1] + more) << b->name << ": " << first << "# k#" << rest;
      }
}

TEST_F(CudaChain, the_gradients_of_sm80_backward_are_refused_in_words) {
  const Backend* b = find_backend("sm80_backward");
  ASSERT_NE(b, nullptr);
  const struct { const char *line, *on, *says; } cases[] = {
      {"backward bf16 b1 h1 q8 k8 d64 full", "t4", "requires sm_80 or later, but Tesla T4 is sm_75"},
      {"forward bf16 b1 h1 q8 k8 d64 full", "h200", "computes a backward, not a forward"},
      {"backward f32 b1 h1 q8 k8 d64 full", "h200", "dtype f32 is not one of f16, bf16"},
      {"backward bf16 b1 h1 q8 k8 d68 full", "h200", "dim 68 is not a multiple of 8 up to 256"},
      {"backward bf16 b1 h1 q8 k8 d264 full", "h200", "dim 264 is not a multiple of 8 up to 256"},
      {"backward bf16 b1 h1 q8 k8 d64 full descale", "h200", "does not support the option descale"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(b->supports(problem(c.line), known(c.on)).message, join("sm80_backward: ", c.says)) << c.line;
}

}  // namespace
}  // namespace attune
