// SPDX-License-Identifier: Apache-2.0
// The backends behind the fused kernels in the GPU chain: what cuda_standard and vendor_cudnn accept, the text of their
// refusals, and the workspace they plan. Pure functions: no GPU required.
#include "attention/cudnn/versions.h"
#include "tests/attention/refusals.h"

namespace attune {
namespace {

class GpuChain : public WithGpuCode {
 protected:
  std::string refusal(std::string_view backend, std::string_view line, std::string_view on = "h200") const {
    return find_backend(backend)->supports(problem(line), known(on)).message;
  }
  size_t bytes(std::string_view backend, std::string_view line) const {
    Plan plan{.backend = find_backend(backend), .problem = problem(line), .device = known("h200")};
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
        "forward bf16 b1 h2 q128 k128 d64 causal blocks16x16x64",
        "forward f16 b2 h2 q3 k8 d20 full append rotary paged1", "backward f16 b1 h1 q8 k8 d8 causal bias repro=run"})
    EXPECT_EQ(refusal("cuda_standard", line), "") << line;
}

TEST_F(GpuChain, standard_refuses_in_words) {
  const Refusal cases[] = {
      {"cuda_standard", "forward f64 b1 h1 q8 k8 d8 full", "h200", "dtype f64 is not one of f32, f16, bf16"},
      {"cuda_standard", "forward bf16 b1 h1 q8 k8 d8 full", "t4",
       "bf16 requires sm_80 or later, but Tesla T4 is sm_75"},
      {"cuda_standard", "forward f16/bf16/f16 b1 h1 q8 k8 d8 full", "h200",
       "q is f16 and kv is bf16; both must be the same"},
      {"cuda_standard", "backward bf16/bf16/f32/bf16 b1 h1 q8 k8 d8 full", "h200",
       "q is bf16 and out is f32; both must be the same"},
      {"cuda_standard", "forward f16/f16/bf16 b1 h1 q8 k8 d8 full", "h200",
       "out dtype bf16 is neither f16 nor f32"},
      {"cuda_standard", "forward f16 b1 h1 q8 k8 d8 full descale", "h200", "does not support the option descale"},
      {"cuda_standard", "forward f16 b1 h1 q8 k8 d8 full repro=batch", "h200", "does not guarantee repro=batch"},
      {"cuda_standard", "forward f16 b1 h1 q200000 k200000 d8 full", "h200", "scores take 2^36 bytes or more"},
  };
  expect_refusals(cases);
  EXPECT_EQ(refusal("cuda_standard", "forward f16 b1 h1 q8 k8 d8 full", "t4"), "");
  Device old = known("t4");
  old.arch = 70, old.name = "NVIDIA V100";
  EXPECT_EQ(find_backend("cuda_standard")->supports(problem("forward f16 b1 h1 q8 k8 d8 full"), old).message,
            "cuda_standard: requires sm_75 or later, but NVIDIA V100 is sm_70");
}

TEST_F(GpuChain, standard_keeps_scores_below_its_budget) {
  const size_t gib = size_t(1) << 30;
  EXPECT_LT(bytes("cuda_standard", "forward bf16 b64 h64 q4096 k4096 d64 full"), 2 * gib);
  EXPECT_LT(bytes("cuda_standard", "backward bf16 b64 h64 q4096 k4096 d64 full"), 3 * gib);
  // A single head exceeds the budget and is planned nevertheless.
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
  const Refusal cases[] = {
      {"vendor_cudnn", "forward f16 b1 h1 q8 k8 d8 full", "t4", "requires sm_80 or later, but Tesla T4 is sm_75"},
      {"vendor_cudnn", "forward f32 b1 h1 q8 k8 d8 full", "h200", "dtype f32 is not one of f16, bf16"},
      {"vendor_cudnn", "forward bf16/bf16/f32 b1 h1 q8 k8 d8 full", "h200",
       "dtypes bf16/bf16/f32 are not all the same"},
      {"vendor_cudnn", "forward bf16 b1 h1 q8 k8 d12 full", "h200", "dim 12 is not a multiple of 8 up to 256"},
      {"vendor_cudnn", "backward bf16 b1 h1 q8 k8 d192 full", "a100",
       "not a multiple of 8 up to 128, the limit of a backward on sm_80"},
      {"vendor_cudnn", "forward bf16 b1 h1 q8 k8 d64 full softcap", "h200", "does not support the option softcap"},
      {"vendor_cudnn", "forward bf16 b1 h1 q8 k8 d64 full ragged", "h200", "does not support ragged keys"},
      {"vendor_cudnn", "forward bf16 b1 h1 q8 k8 d64 causal@absolute", "h200", "does not support absolute positions"},
      {"vendor_cudnn", "forward bf16 b1 h1 q8 k8 d64 causal/4+0", "h200", "does not support keys 4 apart"},
      {"vendor_cudnn", "forward bf16 b1 h1 q9 k8 d64 causal", "h200", "rows that see no key"},
      {"vendor_cudnn", "forward bf16 b1 h1 q9 k8 d64 window3,0@top_left", "h200", "rows that see no key"},
      {"vendor_cudnn", "backward bf16 b1 h1 q8 k8 d64 full repro=run", "h200", "repro=run is not supported"},
  };
  expect_refusals(cases);
}

TEST_F(GpuChain, vendor_plans_memory_in_proportion) {
  EXPECT_LT(bytes("vendor_cudnn", "forward bf16 b4 h16 q4096 k4096 d128 causal"), size_t(20) << 20);
  const size_t sum = size_t(4) * 16 * 4096 * 128 * 4;  // dq in f32
  EXPECT_GE(bytes("vendor_cudnn", "backward bf16 b4 h16 q4096 k4096 d128 causal"), 2 * sum);
  EXPECT_LT(bytes("vendor_cudnn", "backward bf16 b4 h16 q4096 k4096 d128 causal"), 3 * sum);
}

// If rows share a bias, its gradient is reduced from a separate matrix.
TEST_F(GpuChain, standard_plans_a_third_matrix_for_the_gradient_of_a_bias) {
  const size_t plain = bytes("cuda_standard", "backward bf16 b2 h4 q512 k512 d64 full softcap");
  const size_t biased = bytes("cuda_standard", "backward bf16 b2 h4 q512 k512 d64 full bias");
  EXPECT_EQ(biased - plain, size_t(2) * 4 * 512 * 512 * 4);
}

TEST_F(GpuChain, vendor_says_which_arguments_it_does_not_take) {
  const char* line = "backward bf16 b2 h4 q128 k128 d64 causal";
  EXPECT_EQ(Call(line).said("vendor_cudnn"), "");
  int32_t lengths[2] = {1, 2};
  Call ragged(line);
  ragged.args[Role::used_k] = {lengths, DType::i32, DeviceKind::cuda, 0, {2, 1, 1, 1}, {1, 0, 0}};
  EXPECT_EQ(ragged.said("vendor_cudnn"), "vendor_cudnn: does not support lengths per sequence or a cache index");
  Call odd(line);
  odd.args[Role::q].data = static_cast<char*>(odd.args[Role::q].data) + 2;
  EXPECT_EQ(odd.said("vendor_cudnn"),
            "vendor_cudnn: q has an address or a stride that is not a multiple of 16 bytes");
  Call lean(line);
  lean.args[Role::dv] = {};
  EXPECT_EQ(lean.said("vendor_cudnn"),
            "vendor_cudnn: computes dq, dk and dv together, but not all of them are given");
  Call other(line);
  other.args[Role::d_lse] = other.args[Role::q];
  EXPECT_EQ(other.said("vendor_cudnn"), "vendor_cudnn: does not support a gradient of lse");
}

TEST_F(GpuChain, a_call_that_does_not_fit_goes_down_the_chain) {
  PlanCache cache(Planner{.device = known("h200")});
  Call call("forward bf16 b2 h4 q128 k128 d64 causal");
  PlanCache::Kept plan;
  ASSERT_TRUE(cache.find(call.p, plan).ok());
  const PlanCache::Kept first = plan;
  ASSERT_TRUE(cache.fit(call.args, plan).ok());
  EXPECT_EQ(plan, first);
  call.args[Role::q].data = static_cast<char*>(call.args[Role::q].data) + 2;
  ASSERT_TRUE(cache.fit(call.args, plan).ok());
  EXPECT_EQ(plan->backend->name, "cuda_standard");
  EXPECT_EQ(plan->instead_of->name, "vendor_cudnn");
  EXPECT_NE(plan->refused.find("vendor_cudnn: q has an address or a stride that is not a multiple of 16 bytes"),
            std::string::npos) << plan->refused;
}

TEST(CudnnVersions, known_errors_are_refused_and_nothing_else) {
  const struct { int64_t version; const char *line, *says; } cases[] = {
      {91400, "forward bf16 b1 h1 q4096 k4096 d64 causal", ""},
      {91400, "forward bf16 b1 h1 q4096 k4096 d64 window128,0", ""},
      {91400, "forward bf16 b1 h1 q4096 k4096 d64 window128,*", "cuDNN 9.14.0 gets a window without a right end wrong"},
      {91401, "forward bf16 b1 h1 q4096 k4096 d64 window128,*", ""},
      {91400, "forward bf16 b1 h1 q1024 k1024 d64 window128,*", ""},
      {91001, "forward bf16 b1 h1 q64 k64 d64 full", "cuDNN 9.10.1 has known errors"},
      {91002, "forward bf16 b1 h1 q64 k64 d64 full", ""},
      {91000, "forward bf16 b1 h1 q64 k64 d64 full", "cuDNN 9.10.0 has known errors"},
      {90900, "forward bf16 b1 h1 q64 k64 d64 window8,*", "is before 9.10.2"},
      {90900, "forward bf16 b1 h1 q1 k64 d64 causal", "is before 9.10, the first to mask a single query"},
      {90900, "forward bf16 b1 h1 q1 k64 d64 full", ""},
      {90500, "forward bf16 b1 h1 q32 k64 d64 causal", "masks from the last key back"},
      {90500, "forward bf16 b1 h1 q32 k64 d64 causal@top_left", ""},
      {90500, "backward bf16 b1 h1 q128 k128 d64 full", "is before 9.6, the first for a backward"},
      {90600, "backward bf16 b1 h1 q128 k128 d64 full", ""},
      {91500, "backward bf16 b1 h1 q64 k192 d64 full", "gets k192 wrong, which is not a multiple of 128"},
      {91500, "backward bf16 b1 h1 q64 k256 d64 full", ""},
      {91501, "backward bf16 b1 h1 q64 k192 d64 full", ""},
      {91501, "backward bf16 b1 h1 q1 k1 d64 full", "no backward of one query and one key"},
  };
  for (const auto& c : cases) {
    const std::string said = cudnn::serves(c.version, problem(c.line), known("h200")).message;
    if (!*c.says) EXPECT_EQ(said, "") << c.version << " " << c.line;
    else EXPECT_NE(said.find(c.says), std::string::npos) << c.version << " " << c.line << " says: " << said;
  }
  EXPECT_FALSE(cudnn::serves(90900, problem("forward bf16 b1 h1 q64 k64 d192 full"), known("a100")).ok());
  EXPECT_TRUE(cudnn::serves(91002, problem("forward bf16 b1 h1 q64 k64 d192 full"), known("a100")).ok());
}

}  // namespace
}  // namespace attune
