// SPDX-License-Identifier: Apache-2.0
// The cases of native sparse attention: each has arguments that fit, a golden result, and a CPU backend that agrees
// with it. No case is skipped because every backend refuses it.
#include <gtest/gtest.h>

#include "machine/host.h"
#include "plan/plan.h"
#include "verify/suite.h"

namespace attune {
namespace {

class NsaCase : public testing::TestWithParam<std::string_view> {};

TEST_P(NsaCase, has_a_golden_result_and_a_backend_that_agrees) {
  Case c;
  ASSERT_TRUE(parse(GetParam(), c).ok());
  Trial trial(c);
  const Status ready = trial.prepare();
  ASSERT_TRUE(ready.ok()) << ready.message;
  int runs = 0;
  for (const Backend* b : backends())
    for (const Place& place : cpu_places()) {
      Plan plan;
      if (b->only_by_name || !plan_on(*b, c.problem, place.device, plan).ok()) continue;
      const Outcome o = trial.run(*b, place.device);
      EXPECT_NE(o.verdict, Verdict::fail) << b->name << " on " << place.word << ": " << o.why;
      ++runs;
    }
  EXPECT_TRUE(runs > 0 || c.problem.dim_qk % 8);  // other head dims run on GPUs only
}

INSTANTIATE_TEST_SUITE_P(Nsa, NsaCase, testing::ValuesIn(nsa_lines().begin(), nsa_lines().end()));

}  // namespace
}  // namespace attune
