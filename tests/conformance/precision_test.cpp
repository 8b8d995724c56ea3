// SPDX-License-Identifier: Apache-2.0
// The tolerance of each f32 precision is tight: inputs rounded as the precision allows pass, and a few bits less fail.
#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <vector>

#include "machine/host.h"
#include "tests/asked_case.h"
#include "verify/suite.h"

namespace attune {
namespace {

double rounded(double x, int bits) {  // to `bits` stored mantissa bits
  if (x == 0 || !std::isfinite(x)) return x;
  const double step = std::ldexp(1., std::ilogb(x) - bits);
  return std::round(x / step) * step;
}

// The reference with the factors of its products rounded.
template <int bits>
Status rounds(const Plan& plan, const Args& a, Workspace, Stream) {
  Args made = a;
  std::list<Owned> owned;
  for (const Role r : {Role::q, Role::k, Role::v, Role::d_out}) {
    if (!a.given(r)) continue;
    const Owned& o = owned.emplace_back(DType::f64, a[r].extent);
    o.each([&](int b, int s, int h, int d) { store(o.t, b, s, h, d, rounded(load(a[r], b, s, h, d), bits)); });
    made[r] = o.t;
  }
  return find_backend("reference")->run({.problem = plan.problem}, made, {}, nullptr);
}

using Run = Status (*)(const Plan&, const Args&, Workspace, Stream);
bool passes(std::string_view line, Run run) {
  Trial trial(case_of(line));
  EXPECT_TRUE(trial.prepare().ok()) << line;
  const Backend rounding{.name = "rounding",
                         .supports = [](const Problem&, const Device&) { return Status::good(); },
                         .shape = [](Plan&, const Planner&) { return Status::good(); },
                         .run = run};
  return trial.run(rounding, Device{}).verdict != Verdict::fail;
}

TEST(Precision, tf32_has_10_bits_and_its_double_21) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const std::string line = join(pass, " f32 b1 h2 q96 k130 d64 causal"), tf32 = line + " precision=tf32",
                      three = line + " precision=tf32x3";
    EXPECT_TRUE(passes(tf32, rounds<10>)) << tf32;
    EXPECT_FALSE(passes(tf32, rounds<7>)) << tf32 << ": bf16 is not enough";
    EXPECT_TRUE(passes(three, rounds<21>)) << three;
    EXPECT_FALSE(passes(three, rounds<17>)) << three;
    EXPECT_FALSE(passes(three, rounds<10>)) << three << ": one product is not enough";
    EXPECT_FALSE(passes(line, rounds<10>)) << line << ": tf32 was not allowed";
  }
}

// A CPU may multiply more precisely than required, and does: every precision gives bit-identical errors.
TEST(Precision, a_cpu_takes_every_precision_and_multiplies_in_full) {
  for (const auto& [pass, who] : {std::pair{"forward", "cpu_forward"}, {"backward", "cpu_backward"}}) {
    std::vector<double> strayed;
    for (const std::string_view how : {"", " precision=tf32", " precision=tf32x3"}) {
      Case c;
      ASSERT_TRUE(parse(join(pass, " f32 b1 h2 q33 k65 d64 causal", how), c).ok());
      Trial trial(c);
      ASSERT_TRUE(trial.prepare().ok());
      const Outcome o = trial.run(*find_backend(who), this_cpu());
      EXPECT_NE(o.verdict, Verdict::fail) << name(c) << ": " << o.why;
      strayed.push_back(o.mae());
    }
    EXPECT_GT(strayed[0], 0);
    EXPECT_EQ(strayed[1], strayed[0]) << who;
    EXPECT_EQ(strayed[2], strayed[0]) << who;
  }
}

}  // namespace
}  // namespace attune
