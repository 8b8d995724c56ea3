// SPDX-License-Identifier: Apache-2.0
// The gradients of the variants of native sparse attention compared with central differences of their own forward, in
// f64: L = sum of d_out * out + d_lse * lse. Then the definition compared with plain attention where both must agree.
#include "tests/reference/gradients.h"

namespace attune {
namespace {

class NsaGradients : public testing::TestWithParam<const char*> {};

TEST_P(NsaGradients, agree_with_central_differences) {
  const Case c = case_of(GetParam());
  World world(c.problem, c.variation);
  const Args forward = world.forward_result();
  const auto loss = [&] {
    const Status s = run_reference(forward_of(c.problem), forward);
    EXPECT_TRUE(s.ok()) << s.message;
    return weighted(forward[Role::out], world.args[Role::d_out]) +
           (forward.given(Role::lse) ? weighted(forward[Role::lse], world.args[Role::d_lse]) : 0.);
  };
  // The choice of blocks has no gradient; a step that changes the choice is not comparable.
  const auto choice = [&] {
    std::vector<double> all;
    const Tensor& t = forward[variant_tensor(17)];
    for (int b = 0; t.data && b < t.extent.batch; ++b)
      for (int s = 0; s < t.extent.seq; ++s)
        for (int h = 0; h < t.extent.head; ++h)
          for (int d = 0; d < t.extent.dim; ++d) all.push_back(load(t, b, s, h, d));
    return all;
  };
  loss();  // provides the inputs of the backward
  const std::vector<double> chosen = choice();
  const Outputs made = world.outputs(true);
  const Status s = run_reference(c.problem, made.args);
  ASSERT_TRUE(s.ok()) << s.message;
  Random random{7};
  int tried = 0;
  for (const Role r : made.roles) {
    const bool own = r >= Role::d_variant;
    const Role dense = r == Role::dq ? Role::q : r == Role::dk ? Role::k : Role::v;
    const Role input = own ? Role(int(r) - kVariantTensors) : dense;
    const Tensor &x = world.args[input], &dx = made.args[r];
    const Extents e = x.extent;
    for (int n = 0; n < 40; ++n) {
      const int b = random.below(e.batch), i = random.below(e.seq), h = random.below(e.head), d = random.below(e.dim);
      const double was = load(x, b, i, h, d), want = load(dx, b, i, h, d), step = 0x1p-8;
      if (std::isnan(was)) continue;  // outside all sequences
      store(x, b, i, h, d, was + step);
      const double up = load(x, b, i, h, d), high = loss();
      const bool kept = choice() == chosen;
      store(x, b, i, h, d, was - step);
      const double down = load(x, b, i, h, d), low = loss();
      store(x, b, i, h, d, was);
      if (!kept || choice() != chosen) continue;
      EXPECT_NEAR((high - low) / (up - down), want, 3e-4 + 1e-3 * std::fabs(want))
          << name(r) << "[" << b << ", " << i << ", " << h << ", " << d << "]";
      tried += want != 0;
    }
  }
  EXPECT_GT(tried, 20);
}

constexpr const char* kLines[] = {
    "backward f64 b2 h2 q19 k8 d4 full : compress d=2 l=4 phi=mean",
    "backward f64 b2 h2 q19 k8 d4 full : compress d=2 l=4 phi=conv | used_q",
    "backward f64 b2 h2 q19 k8 d3 full : compress d=2 hidden=5 l=4 phi=mlp | cu_q drawn",
    "backward f64 b2 h6/2 q9 k9 d4 full : gate act=sigmoid",
    "backward f64 b2 h6/2 q9 k9 d4 full : gate act=softmax | cu_q drawn",
    "backward f64 b2 h6/2 q9 k9 d4 full : gate act=none | used_q",
    "backward f64 b2 h4/2 q17 k33 d4/3 causal : selected n=4 s=4 | d_lse",
    "backward f64 b2 h4/2 q17 k33 d4/3 causal : selected n=4 s=4 | seed=2 d_lse cache",
    "backward f64 b3 h4/2 q33 k33 d4/3 causal ragged : selected n=4 s=4 | drawn",
    "backward f64 b1 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=sigmoid l=4 n=4 phi=mean s=4 w=5",
    "backward f64 b1 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=softmax l=4 n=4 phi=conv s=4 w=5",
    "backward f64 b1 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=none hidden=3 l=4 n=4 phi=mlp s=4 w=5",
    "backward f64 b2 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=none l=4 n=4 phi=none s=4 w=0",
    "backward f64 b3 h2 q29 k29 d4 causal ragged : nsa d=2 gate=sigmoid l=4 n=4 phi=mean s=4 w=5 | drawn",
    "backward f64 b2 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=none l=4 n=4 only=cmp phi=conv s=4 w=5 | d_lse",
    "backward f64 b2 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=none l=4 n=4 only=sel phi=mean s=4 w=5 | d_lse",
    "backward f64 b2 h4/2 q37 k37 d4/3 causal : nsa d=2 gate=none l=4 n=4 only=win phi=mean s=4 w=5 | d_lse"};
INSTANTIATE_TEST_SUITE_P(Nsa, NsaGradients, testing::ValuesIn(kLines));

// A single branch that sees everything is plain attention.
void expect_dense(const std::string& alone, Role keys, Role values) {
  const Case c = case_of("forward f64 b2 h4/2 q50 k50 d8/6 causal : " + alone);
  const World world(c.problem, c.variation);
  const Outputs got = world.outputs(true), want = world.outputs(true);
  ASSERT_TRUE(run_reference(c.problem, got.args).ok());
  Problem dense = c.problem;
  dense.variant = {};
  Args a = want.args;
  a[Role::k] = world.args[keys], a[Role::v] = world.args[values];
  ASSERT_TRUE(run_reference(dense, a).ok());
  for (const Role r : {Role::out, Role::lse})
    got.of(r).each([&](int b, int s, int h, int d) {
      EXPECT_NEAR(load(got.args[r], b, s, h, d), load(want.args[r], b, s, h, d), 1e-12) << name(r);
    });
}

TEST(NsaReference, a_window_over_everything_is_causal_attention) {
  expect_dense("nsa d=2 gate=none l=4 n=4 only=win phi=mean s=4 w=50", variant_tensor(2), variant_tensor(3));
}
TEST(NsaReference, every_block_selected_is_causal_attention) {
  expect_dense("nsa d=1 gate=none l=1 n=50 only=sel phi=mean s=1 w=0", variant_tensor(0), variant_tensor(1));
  expect_dense("nsa d=2 gate=none l=4 n=13 only=sel phi=mean s=4 w=0", variant_tensor(0), variant_tensor(1));
}
TEST(NsaReference, compressed_tokens_of_one_are_causal_attention) {
  expect_dense("nsa d=1 gate=none l=1 n=4 only=cmp phi=mean s=4 w=0", Role::k, Role::v);
}

}  // namespace
}  // namespace attune
