// SPDX-License-Identifier: Apache-2.0
// What the GPU kernels for NSA selection, compression and gating accept, the text of their refusals, and the workspace
// they plan. Pure functions: no GPU required.
#include "tests/attention/refusals.h"

namespace attune {
namespace {

class NsaPlans : public WithGpuCode {
 protected:
  static Plan planned(std::string_view line, std::string_view on = "h200") {
    Plan plan;
    EXPECT_EQ(Planner{.device = known(on)}.plan(problem(line), plan).message, "") << line << " on " << on;
    return plan;
  }
};

TEST_F(NsaPlans, every_word_has_a_kernel) {
  const struct { const char *line, *backend; } cases[] = {
      {"forward bf16 b1 h64/4 q65536 k65536 d192/128 causal : select d=16 l=32 n=16 s=64", "sm80_select"},
      {"forward f16 b2 h1 q9 k9 d8 causal : select d=1 l=1 n=3 s=1", "sm80_select"},
      {"forward f32 b1 h128/1 q9 k9 d250 causal ragged : select d=2 l=64 n=40 s=34", "sm80_select"},
      {"forward bf16 b1 h4 q65536 k4095 d192 full : compress d=16 l=32 phi=mean", "cuda_compress"},
      {"backward f32 b1 h4 q64 k3 d20 full : compress d=16 l=32 phi=conv", "cuda_compress"},
      {"backward bf16 b1 h4 q64 k3 d20 full : compress d=16 hidden=8 l=32 phi=mlp", "cuda_compress"},
      {"forward bf16 b1 h192/64 q9 k9 d128 full : gate act=sigmoid", "cuda_gate"},
      {"backward f16 b1 h6/2 q9 k9 d7 full : gate act=softmax", "cuda_gate"},
      {"forward bf16 b1 h4/2 q9 k9 d8 causal : reads d=4 l=8 n=3 s=8 w=2", "cuda_reads"}};
  for (const auto& c : cases)
    for (const char* on : {"a100", "h200"}) {
      const Plan plan = planned(c.line, on);
      ASSERT_TRUE(plan.backend);
      EXPECT_EQ(plan.backend->name, c.backend) << c.line;
    }
}

TEST_F(NsaPlans, what_is_refused_is_said) {
  const Refusal cases[] = {
      {"sm80_select", "forward bf16 b1 h129/1 q8 k8 d8 causal : select d=1 l=1 n=3 s=1", "h200", "129 heads"},
      {"sm80_select", "forward bf16 b1 h1 q8 k8 d12 causal : select d=1 l=1 n=3 s=1", "h200", "dim 12 of bf16"},
      {"sm80_select", "forward bf16 b1 h1 q8 k8 d8 causal : select d=1 l=1 n=3 s=1", "t4", "requires sm_80 or later"},
      {"sm80_select", "forward bf16 b1 h1 q8 k8 d8 causal", "h200", "computes the variant select, not dense attention"},
      {"cuda_compress", "forward bf16 b1 h1 q8 k1 d6 full : compress d=8 l=8 phi=mlp", "h200", "multiples of 4"},
      {"cuda_gate", "forward bf16 b1 h1 q8 k8 d8 causal", "h200", "computes the variant gate, not dense attention"}};
  expect_refusals(cases);
  Plan plan;
  const Problem many = problem("forward bf16 b1 h1 q99999 k99999 d8 causal : select d=1 l=60000 n=4 s=1");
  const std::string said = Planner{.device = known("h200"), .forced = "sm80_select"}.plan(many, plan).message;
  EXPECT_NE(said.find("bytes of shared memory"), std::string::npos) << said;
}

TEST_F(NsaPlans, few_queries_split_their_keys_and_many_do_not) {
  EXPECT_GT(planned("forward bf16 b1 h64/4 q1 k65536 d128 causal : select d=16 l=32 n=16 s=64").splits, 8);
  EXPECT_EQ(planned("forward bf16 b1 h64/4 q8192 k8192 d128 causal : select d=16 l=32 n=16 s=64").splits, 1);
}

TEST_F(NsaPlans, memory_grows_as_the_tokens_do) {
  const auto bytes = [](int queries) {
    const std::string line =
        join("forward bf16 b1 h64/4 q", queries, " k1048576 d128 causal : select d=16 l=32 n=16 s=64");
    return double(planned(line).workspace_bytes);
  };
  EXPECT_LT(bytes(1 << 20), 16.5 * bytes(1 << 16));
  EXPECT_LE(bytes(1 << 16), 65536. * 64 * 4 + 4096);  // one lse per query, nothing per key
}

}  // namespace
}  // namespace attune
