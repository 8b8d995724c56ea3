// SPDX-License-Identifier: Apache-2.0
// The slow, obvious method for everything sparse, on the CPU and on cuda:0 if present: it matches the golden attention,
// and the fast method matches it. A mistake in a walk, a list or a composition thus has two witnesses.
#include "tests/runs.h"

namespace attune {
namespace {

constexpr std::string_view kLines[] = {
    "forward f32 b2 h4/2 q70 k130 d16 window20,5",
    "backward f32 b2 h4/2 q70 k130 d16 causal@top_left | d_lse",
    "forward f32 b2 h4/2 q70 k130 d16 causal blocks16x32x60 | seed=2",
    "forward f32 b2 h4/2 q70 k130 d16 causal blocks16x32x60 block_bias",
    "backward f32 b2 h4/2 q70 k130 d16 causal blocks16x32x60 block_bias",
    "backward f32 b2 h4/2 q70 k130 d16 causal blocks16x32x60 block_bias | shared d_lse",
    "forward f32 b2 h4/2 q130 k130 d16 causal : dilated rates=1,2 segments=32,64",
    "backward f32 b2 h4/2 q130 k130 d16 causal : dilated rates=1,2 segments=32,64",
    "forward f32 b2 h4/2 q65 k65 d16 causal : selected n=4 s=8",
    "backward f32 b2 h4/2 q65 k65 d16 causal : selected n=4 s=8",
    "forward f32 b2 h4/2 q130 k130 d16 causal : adaptive block=16 density=0.3 hidden=24 | d_lse",
    "forward f32 b2 h4/2 q77 k130 d16/24 causal : adaptive block=16 density=0.5 hidden=40 noise=gumbel | drawn used_q",
    "backward f32 b2 h4/2 q130 k130 d16 causal : adaptive block=16 density=0.3 hidden=24 per_head=1 | d_lse",
    "backward f32 b3 h2 q90 k120 d16 causal ragged : adaptive block=16 density=0.25 hidden=16 | seed=6 drawn d_lse",
    "backward bf16 b1 h4/1 q200 k150 d128 full : adaptive block=64 density=0.5 hidden=32 | seed=2 d_lse",
    "forward f32 b2 h4/2 q150 k150 d16 causal : nsa d=4 gate=sigmoid l=8 n=6 phi=mean s=8 w=20",
    "forward f32 b1 h4/2 q100 k100 d16/8 causal : nsa d=4 gate=none hidden=12 l=8 n=4 phi=mlp s=8 w=20 | bhsd",
    "forward f32 b4 h6/2 q90 k90 d32 causal ragged : nsa d=4 gate=sigmoid l=8 n=5 phi=conv s=8 w=12 | odd",
    "forward f32 b3 h4/2 q1 k400 d16 causal : nsa d=16 gate=sigmoid l=32 n=5 phi=none s=32 w=40 | drawn",
    "forward bf16 b1 h16/1 q200 k200 d64 causal : nsa d=16 gate=softmax l=32 n=4 phi=mean s=32 w=0",
    "backward f32 b2 h4/2 q150 k150 d16/24 causal : nsa d=4 gate=softmax l=8 n=4 phi=conv s=16 w=1",
    "backward f32 b1 h4/2 q100 k100 d16/8 causal : nsa d=4 gate=none hidden=12 l=8 n=4 phi=mlp s=8 w=20 | bhsd",
    "backward bf16 b2 h6/2 q90 k90 d32 causal ragged : nsa d=4 gate=sigmoid l=8 n=5 phi=mean s=8 w=12 | odd",
    "backward f32 b2 h4/2 q120 k120 d16 causal : nsa d=4 gate=none l=8 n=6 only=cmp phi=mean s=8 w=20 | d_lse",
};

class MaskedDense : public testing::TestWithParam<std::string_view> {};

// The largest difference of two results relative to the largest element. Some gradients are 0 except for rounding and
// have no scale.
double apart(const Tensor& a, const Tensor& b) {
  double most = 0, size = 0.1;
  each(a, [&](int x, int s, int h, int d) {
    const double one = load(a, x, s, h, d), other = load(b, x, s, h, d);
    if (std::isfinite(other)) size = std::max(size, std::fabs(other));
    if (std::isnan(one) != std::isnan(other)) most = INFINITY;
    else if (one != other && !std::isnan(one)) most = std::max(most, std::fabs(one - other));
  });
  return most / size;
}

TEST_P(MaskedDense, is_the_golden_attention_and_what_the_fast_way_says) {
  const Case c = case_of(GetParam());
  const Backend& slow = *find_backend("masked_dense");
  Trial trial(c);
  ASSERT_EQ(trial.prepare().message, "");
  for (const Device& device : devices()) {
    const Outcome o = trial.run(slow, device);
    EXPECT_NE(o.verdict, Verdict::fail) << device.name << ": " << o.why;
    EXPECT_EQ(o.unfit, "") << device.name;
    Plan dense, fast;
    ASSERT_EQ(plan_on(slow, c.problem, device, dense).message, "");
    ASSERT_EQ((Planner{.device = device}.plan(c.problem, fast).message), "");
    EXPECT_NE(fast.backend, &slow);
    Outputs one = trial.world.outputs(false), other = trial.world.outputs(false);
    ASSERT_EQ(run_plan(dense, trial.world, one).message, "");
    ASSERT_EQ(run_plan(fast, trial.world, other).message, "");
    const double near = c.problem.dtype.q == DType::f32 ? (device.kind == DeviceKind::cpu ? 1e-4 : 2e-3) : 0.05;
    for (const Role r : one.roles) EXPECT_LE(apart(one.args[r], other.args[r]), near) << device.name << ", " << name(r);
  }
}

INSTANTIATE_TEST_SUITE_P(Lines, MaskedDense, testing::ValuesIn(kLines));

// Shows that it is not an alias of the fast method.
TEST(MaskedDenseOf, a_variant_that_chooses_does_every_attention_with_a_bias) {
  for (const std::string_view line :
       {"backward f32 b1 h2 q20 k20 d16 causal : nsa d=4 gate=none l=4 n=4 phi=mean s=4 w=8",
        "forward f32 b1 h2 q20 k20 d16 causal : nsa d=4 gate=none l=4 n=4 phi=mean s=4 w=8",
        "backward f32 b1 h2 q20 k20 d16 causal : adaptive block=4 density=0.5 hidden=8"}) {
    const Problem p = case_of(line).problem;
    Plan plan;
    ASSERT_EQ((Planner{.device = this_cpu(), .forced = "masked_dense"}.plan(p, plan).message), "");
    ASSERT_EQ(plan.sub_plans.size(), 1u);
    EXPECT_EQ(plan.sub_plans[0].backend->name, word(p.variant));
    int dense = 0;
    for (const Plan& part : plan.sub_plans[0].sub_plans) {
      if (part.backend->name != "masked_dense") continue;
      EXPECT_TRUE(part.sub_plans[0].problem.has(Option::bias));
      EXPECT_EQ(part.sub_plans[0].problem.mask.blocks.q, 0);
      EXPECT_GE(part.workspace_bytes, sizeof(float) * 2 * 20 * 5) << "a number for every pair";
      ++dense;
    }
    EXPECT_EQ(dense, word(p.variant) == "nsa" ? 3 : 1) << line;
  }
}

TEST(MaskedDenseOf, what_it_cannot_say_is_refused_in_a_sentence) {
  for (const auto& [line, why] : {
           std::pair{"forward f32 b1 h2 q20 k20 d16 full",
                     "masked_dense: requires something to hide: a band, block lists or a variant"},
           {"forward f32 b1 h2 q20 k20 d16 causal bias",
            "masked_dense: does not support the option bias, which it uses itself"},
           {"forward f32 b1 h2 q20 k20 d16 causal alibi",
            "masked_dense: replaces a band by a bias, which does not support the option alibi"},
           {"backward f32 b1 h2 q20 k20 d16 causal blocks4x4x60 accumulate block_bias",
            "masked_dense: does not accumulate a gradient of block_bias"},
           {"backward f32 b1 h2 q20 k20 d16 causal : dilated gradient=detached rates=1,2 segments=10,20",
            "masked_dense: computes only the exact gradient, not a detached one"},
           {"forward f32 b1 h2 q20 k20 d16 causal : dilated norm=divide rates=1,2 segments=10,20",
            "masked_dense: is one softmax; it requires norm=lse, or norm=none with one branch for every head"},
           {"forward f32 b1 h2 q20 k20 d16 causal : dilated offsets=contiguous rates=1,2 segments=10,20",
            "masked_dense: requires offsets=cyclic of dilated"},
           {"forward f32 b1 h2 q20 k20 d16 causal : reads d=2 l=4 n=3 s=4 w=5",
            "masked_dense: cannot express the variant reads as a bias"}})
    EXPECT_EQ(find_backend("masked_dense")->supports(case_of(line).problem, this_cpu()).message, why) << line;
}

}  // namespace
}  // namespace attune
