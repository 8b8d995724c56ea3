// The links of the GPU chain behind the fused kernels: what cuda_standard and vendor_cudnn take, in which words they
// refuse, and how much memory they plan. Pure functions: no GPU is needed.
#include <gtest/gtest.h>

#include "plan/plan.h"

namespace attune {
namespace {

Problem problem(std::string_view line) {
  Problem p;
  const Status s = parse(line, p);
  EXPECT_TRUE(s.ok()) << s.message;
  return p;
}
Device device(std::string_view word) {
  Device d;
  EXPECT_TRUE(known_device(word, d).ok());
  return d;
}

class GpuChain : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("cuda_standard")) GTEST_SKIP() << "this build has no GPU code";
  }
  std::string refusal(std::string_view backend, std::string_view line, std::string_view on = "h200") const {
    return find_backend(backend)->supports(problem(line), device(on)).message;
  }
  size_t bytes(std::string_view backend, std::string_view line) const {
    Plan plan{.backend = find_backend(backend), .problem = problem(line), .device = device("h200")};
    EXPECT_TRUE(plan.backend->shape(plan, Planner{.device = plan.device}).ok());
    return plan.workspace_bytes;
  }
};

TEST_F(GpuChain, standard_takes_every_dense_problem) {
  for (const char* line :
       {"forward f32 b1 h1 q1 k1 d1 full", "forward f16 b2 h6/3 q33 k65 d20/36 window3,2@top_left",
        "backward bf16 b2 h4/2 q64 k96 d64 causal softcap alibi bias.bf16 dropout sink",
        "forward bf16/bf16/f32 b1 h2 q8 k8 d64 full accumulate", "forward bf16 b4 h8 q64 k64 d64 causal ragged",
        "backward f16 b4 h8 q64 k64 d64 causal paged16", "forward f32 b1 h1 q64 k64 d64 causal precision=tf32",
        "forward bf16 b1 h2 q128 k128 d64 causal blocks16x16x64", "backward f16 b1 h1 q8 k8 d8 causal repro=run"})
    EXPECT_EQ(refusal("cuda_standard", line), "") << line;
}

TEST_F(GpuChain, standard_refuses_in_words) {
  const struct { const char *line, *on, *says; } cases[] = {
      {"forward f64 b1 h1 q8 k8 d8 full", "h200", "dtype f64 is not one of f32, f16, bf16"},
      {"forward bf16 b1 h1 q8 k8 d8 full", "t4", "bf16 needs Ampere (sm_80) or later, and NVIDIA T4 is sm_75"},
      {"forward f16/bf16/f16 b1 h1 q8 k8 d8 full", "h200", "dtype bf16 of k and v is not that of q, f16"},
      {"backward bf16/bf16/f32/bf16 b1 h1 q8 k8 d8 full", "h200", "dtype f32 of out is not that of q, bf16"},
      {"forward f16/f16/bf16 b1 h1 q8 k8 d8 full", "h200", "dtype bf16 of out is neither f32 nor that of q, f16"},
      {"forward f16 b1 h1 q8 k8 d8 full append", "h200", "does not know the option append"},
      {"forward f16 b1 h1 q8 k8 d8 full repro=batch", "h200", "cuBLASLt does not promise repro=batch"},
      {"backward f16 b1 h1 q8 k8 d8 full bias repro=run", "h200", "summed in no fixed order"},
      {"forward f16 b1 h1 q200000 k200000 d8 full", "h200", "scores take over 2^36 bytes"},
  };
  for (const auto& c : cases) {
    const std::string said = refusal("cuda_standard", c.line, c.on);
    EXPECT_TRUE(said.starts_with("cuda_standard: ")) << said;
    EXPECT_NE(said.find(c.says), std::string::npos) << c.line << " says: " << said;
  }
  EXPECT_EQ(refusal("cuda_standard", "forward f16 b1 h1 q8 k8 d8 full", "t4"), "");
  Device old = device("t4");
  old.arch = 70, old.name = "NVIDIA V100";
  EXPECT_EQ(find_backend("cuda_standard")->supports(problem("forward f16 b1 h1 q8 k8 d8 full"), old).message,
            "cuda_standard: needs an NVIDIA GPU of Turing (sm_75) or later, and NVIDIA V100 is sm_70");
}

TEST_F(GpuChain, standard_keeps_scores_below_its_budget) {
  const size_t gib = size_t(1) << 30;
  EXPECT_LT(bytes("cuda_standard", "forward bf16 b64 h64 q4096 k4096 d64 full"), 2 * gib);
  EXPECT_LT(bytes("cuda_standard", "backward bf16 b64 h64 q4096 k4096 d64 full"), 3 * gib);
  // One head alone is over the budget: it is planned all the same.
  EXPECT_GT(bytes("cuda_standard", "forward bf16 b1 h2 q32768 k32768 d64 full"), 4 * gib);
  EXPECT_LT(bytes("cuda_standard", "forward bf16 b1 h2 q32768 k32768 d64 full"), 5 * gib);
}

TEST_F(GpuChain, vendor_takes_plain_attention) {
  for (const char* line :
       {"forward bf16 b2 h8/2 q64 k96 d128 causal", "backward f16 b2 h8 q96 k96 d256 window31,0",
        "forward f16 b1 h1 q96 k64 d64 causal@top_left", "forward bf16 b1 h1 q1 k64 d8/16 full",
        "forward bf16 b1 h4 q64 k64 d64 window*,3 repro=run"})
    EXPECT_EQ(refusal("vendor_cudnn", line), "") << line;
}

TEST_F(GpuChain, vendor_refuses_in_words) {
  const struct { const char *line, *on, *says; } cases[] = {
      {"forward f16 b1 h1 q8 k8 d8 full", "t4", "of Ampere (sm_80) or later, and NVIDIA T4 is sm_75"},
      {"forward f32 b1 h1 q8 k8 d8 full", "h200", "dtype f32 is not one of f16, bf16"},
      {"forward bf16/bf16/f32 b1 h1 q8 k8 d8 full", "h200", "dtypes bf16/bf16/f32 are not one and the same"},
      {"forward bf16 b1 h1 q8 k8 d12 full", "h200", "dim 12 is not a multiple of 8 up to 256"},
      {"backward bf16 b1 h1 q8 k8 d192 full", "a100", "dim 192 is not a multiple of 8 up to 128 before sm_90"},
      {"forward bf16 b1 h1 q8 k8 d64 full softcap", "h200", "does not know the option softcap"},
      {"forward bf16 b1 h1 q8 k8 d64 full ragged", "h200", "does not know ragged keys"},
      {"forward bf16 b1 h1 q8 k8 d64 causal@absolute", "h200", "does not know absolute positions"},
      {"forward bf16 b1 h1 q8 k8 d64 causal/4+0", "h200", "does not know keys 4 apart"},
      {"forward bf16 b1 h1 q9 k8 d64 causal", "h200", "rows that see no key"},
      {"forward bf16 b1 h1 q9 k8 d64 window3,0@top_left", "h200", "rows that see no key"},
      {"backward bf16 b1 h1 q8 k8 d64 full repro=run", "h200", "repro=run is not kept"},
  };
  for (const auto& c : cases) {
    const std::string said = refusal("vendor_cudnn", c.line, c.on);
    EXPECT_TRUE(said.starts_with("vendor_cudnn: ")) << said;
    EXPECT_NE(said.find(c.says), std::string::npos) << c.line << " says: " << said;
  }
}

TEST_F(GpuChain, vendor_plans_memory_in_proportion) {
  EXPECT_LT(bytes("vendor_cudnn", "forward bf16 b4 h16 q4096 k4096 d128 causal"), size_t(20) << 20);
  const size_t sum = size_t(4) * 16 * 4096 * 128 * 4;  // dq in f32
  EXPECT_GE(bytes("vendor_cudnn", "backward bf16 b4 h16 q4096 k4096 d128 causal"), 2 * sum);
  EXPECT_LT(bytes("vendor_cudnn", "backward bf16 b4 h16 q4096 k4096 d128 causal"), 3 * sum);
}

}  // namespace
}  // namespace attune
