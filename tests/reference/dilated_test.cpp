// SPDX-License-Identifier: Apache-2.0
// The gradients of dilated attention compared with central differences of its own forward, in f64, and the definition
// in cases where it equals plain attention.
#include "tests/reference/gradients.h"

namespace attune {
namespace {

class DilatedGradients : public testing::TestWithParam<const char*> {};

TEST_P(DilatedGradients, agree_with_central_differences) {
  const Case c = case_of(GetParam());
  World world(c.problem, c.variation);
  const Args forward = world.forward_result();
  const auto loss = [&] {
    EXPECT_TRUE(run_reference(forward_of(c.problem), forward).ok());
    return weighted(forward[Role::out], world.args[Role::d_out]) +
           weighted(forward[Role::lse], world.args[Role::d_lse]);
  };
  // An lse is always f32: small steps drown in its rounding.
  const double step = c.variation.d_lse ? 0x1p-7 : 0x1p-12, tolerance = c.variation.d_lse ? 3e-4 : 1e-6;
  loss();
  const Outputs made = world.outputs(true);
  ASSERT_TRUE(run_reference(c.problem, made.args).ok());
  double largest = 0;
  for (const auto& [input, gradient] : {std::pair{Role::q, Role::dq}, {Role::k, Role::dk}, {Role::v, Role::dv}}) {
    const Tensor &x = world.args[input], &dx = made.args[gradient];
    for (int s = 0; s < x.extent.seq; ++s)
      for (int h = 0; h < x.extent.head; ++h) {
        const int b = s % x.extent.batch, d = (s + h) % x.extent.dim;
        const double was = load(x, b, s, h, d);
        store(x, b, s, h, d, was + step);
        const double up = loss();
        store(x, b, s, h, d, was - step);
        const double down = loss();
        store(x, b, s, h, d, was);
        const double want = (up - down) / (2 * step);
        ASSERT_NEAR(load(dx, b, s, h, d), want, tolerance) << name(gradient) << " " << s << " " << h;
        largest = std::fmax(largest, std::fabs(load(dx, b, s, h, d)));
      }
  }
  EXPECT_GT(largest, 0.01);  // guards against a trivial case
}

INSTANTIATE_TEST_SUITE_P(
    Lines, DilatedGradients,
    testing::Values(
        "backward f64 b1 h3 q13 k13 d4 causal : dilated rates=1,2,3 segments=4,6,13 | d_lse",
        "backward f64 b2 h4/2 q11 k11 d4 full : dilated rates=2,3 segments=4,11 | d_lse",
        "backward f64 b2 h4/2 q11 k11 d4 full : dilated offsets=contiguous rates=2,3 segments=4,11 | d_lse",
        "backward f64 b1 h4/2 q11 k11 d4 causal : dilated norm=divide rates=1,3 segments=4,8",
        "backward f64 b1 h2 q11 k11 d4 full : dilated norm=none rates=1,1 segments=4,4",
        "backward f64 b1 h5 q11 k11 d4 causal : dilated mode=headgroup rates=1,2 segments=5,11 | d_lse",
        "backward f64 b1 h4/2 q11 k11 d4 full : dilated mode=headgroup norm=divide rates=1,2 segments=5,9"));

// With constant shares, out = sum of share_i out_i has the gradient of that sum. The test computes it branch by branch,
// each with its own out and lse and with d_out scaled by its share.
TEST(DilatedReference, detached_gradients_take_the_shares_as_constants) {
  const Case c = case_of("backward f64 b1 h3 q17 k17 d4 causal : dilated gradient=detached rates=1,2 segments=5,12");
  World world(c.problem, c.variation);
  ASSERT_TRUE(run_reference(forward_of(c.problem), world.forward_result()).ok());
  const Outputs made = world.outputs(true);
  ASSERT_TRUE(run_reference(c.problem, made.args).ok());
  Outputs sum = world.outputs(true);
  for (Owned& o : sum.owned) o.set(std::vector<double>(17 * 3 * 4));
  for (const char* branch : {"rates=1 segments=5", "rates=2 segments=12"}) {
    const Case one = case_of(join("backward f64 b1 h3 q17 k17 d4 causal : dilated ", branch));
    World alone(one.problem, one.variation);  // the same seed and sizes give the same inputs
    ASSERT_TRUE(run_reference(forward_of(one.problem), alone.forward_result()).ok());
    for (int s = 0; s < 17; ++s)
      for (int h = 0; h < 3; ++h) {
        ASSERT_EQ(load(alone.args[Role::q], 0, s, h, 0), load(world.args[Role::q], 0, s, h, 0));
        const double own = load(alone.args[Role::lse], 0, s, h, 0), all = load(world.args[Role::lse], 0, s, h, 0);
        const double share = std::exp(own - all);
        for (int d = 0; d < 4; ++d)
          store(alone.args[Role::d_out], 0, s, h, d, share * load(world.args[Role::d_out], 0, s, h, d));
      }
    const Outputs part = alone.outputs(true);
    ASSERT_TRUE(run_reference(one.problem, part.args).ok());
    for (const Role r : {Role::dq, Role::dk, Role::dv})
      for (int s = 0; s < 17; ++s)
        for (int h = 0; h < 3; ++h)
          for (int d = 0; d < 4; ++d)
            store(sum.args[r], 0, s, h, d, load(sum.args[r], 0, s, h, d) + load(part.args[r], 0, s, h, d));
  }
  for (const Role r : {Role::dq, Role::dk, Role::dv})
    for (int s = 0; s < 17; ++s)
      for (int h = 0; h < 3; ++h)
        for (int d = 0; d < 4; ++d)
          ASSERT_NEAR(load(made.args[r], 0, s, h, d), load(sum.args[r], 0, s, h, d), 1e-5) << name(r);
}

}  // namespace
}  // namespace attune
