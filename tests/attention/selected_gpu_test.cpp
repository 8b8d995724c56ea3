// SPDX-License-Identifier: Apache-2.0
// What the GPU kernels of selected attention accept, the text of their refusals, and the workspace they plan. Pure
// functions: no GPU required.
#include "tests/attention/refusals.h"

namespace attune {
namespace {

class SelectedPlans : public WithGpuCode {
 protected:
  static const Backend& backend(const Problem& p) {
    return *find_backend(p.pass == Pass::forward ? "sm80_selected" : "sm80_selected_backward");
  }
  static Status planned(std::string_view line, std::string_view on, Plan& plan) {
    const Problem p = problem(line);
    return Planner{.device = known(on), .forced = backend(p).name}.plan(p, plan);
  }
};

TEST_F(SelectedPlans, every_group_block_and_head_dim_is_taken_from_ampere_on) {
  for (const char* on : {"a100", "h100", "h200"})
    for (const std::string_view pass : {"forward", "backward"})
      for (const std::string_view shape :
           {"b1 h64/4 q65536 k65536 d192/128 causal : selected n=16 s=64",
            "b2 h1 q10 k90 d8 causal : selected n=3 s=1", "b1 h300/1 q5 k9 d256 causal : selected n=4096 s=128",
            "b3 h12/1 q9 k9 d64/256 causal ragged : selected n=7 s=48"}) {
        const std::string line = join(pass, " bf16 ", shape);
        Plan plan;
        EXPECT_EQ(planned(line, on, plan).message, "") << line << " on " << on;
      }
}

TEST_F(SelectedPlans, what_is_refused_is_said) {
  const Refusal cases[] = {
      {"sm80_selected", "forward f32 b1 h1 q8 k8 d8 causal : selected n=3 s=4", "h200",
       "dtype f32 is not one of f16, bf16"},
      {"sm80_selected", "forward bf16 b1 h1 q8 k8 d12 causal : selected n=3 s=4", "h200",
       "dim 12 is not a multiple of 8 up to 256"},
      {"sm80_selected", "forward bf16 b1 h1 q8 k8 d8 causal : selected n=3 s=4", "t4",
       "requires sm_80 or later"},
      {"sm80_selected", "forward bf16 b1 h1 q8 k8 d8 causal", "h200", "computes the variant selected, not dense"},
      {"sm80_selected_backward", "backward bf16/bf16/f32/bf16 b1 h1 q8 k8 d8 causal : selected n=3 s=4", "h200",
       "q is bf16 and out is f32"},
  };
  expect_refusals(cases);
}

TEST_F(SelectedPlans, what_the_tensor_cores_refuse_goes_to_ordinary_multiply_adds) {
  for (const char* line : {"forward f32 b1 h2 q8 k8 d8 causal : selected n=3 s=4",
                           "backward f32 b1 h2 q8 k8 d8 causal : selected n=3 s=4",
                           "forward bf16 b1 h2 q8 k8 d12 causal : selected n=3 s=4"}) {
    Plan plan;
    ASSERT_EQ(Planner{.device = known("h200")}.plan(problem(line), plan).message, "") << line;
    EXPECT_EQ(plan.backend->name, "cuda_selected") << line;
  }
  const Problem wide = problem("forward f32 b1 h2 q8 k8 d260 causal : selected n=3 s=4");
  EXPECT_EQ(find_backend("cuda_selected")->supports(wide, known("h200")).message, "cuda_selected: dim 260 is over 256");
}

// The list of a token is split only if there are few tokens.
TEST_F(SelectedPlans, lists_of_one_token_are_split_and_of_many_not) {
  const auto plan_of = [](std::string_view shape) {
    Plan plan;
    EXPECT_EQ(planned(join("forward bf16 b1 h64/4 ", shape, " : selected n=16 s=64"), "h200", plan).message, "");
    return plan;
  };
  EXPECT_EQ(plan_of("q1 k65536 d128 causal").splits, 16);
  EXPECT_EQ(plan_of("q1 k300 d128 causal").splits, 5);
  EXPECT_EQ(plan_of("q8192 k8192 d128 causal").splits, 1);
  EXPECT_EQ(plan_of("q8192 k8192 d128 causal").workspace_bytes, 0u);
  EXPECT_EQ(plan_of("q1 k65536 d128 causal repro=batch").splits, 1);
}

TEST_F(SelectedPlans, scratch_of_a_backward_grows_as_tokens_do) {
  const auto bytes = [](std::string_view tokens) {
    const std::string line =
        join("backward bf16 b1 h64/4 q", tokens, " k", tokens, " d192/128 causal : selected n=16 s=64");
    Plan plan;
    EXPECT_EQ(planned(line, "h200", plan).message, "");
    return double(plan.workspace_bytes);
  };
  EXPECT_LT(bytes("262144"), 4.1 * bytes("65536"));
  EXPECT_LT(bytes("65536"), 65536. * 16384);  // q, out and their gradients take 81,920 bytes per token
}

}  // namespace
}  // namespace attune
