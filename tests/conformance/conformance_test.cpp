// SPDX-License-Identifier: Apache-2.0
// Coverage of the cases: every backend has one, and every device has enough. `attune parity --levels --coverage` runs
// them.
#include <gtest/gtest.h>

#include "machine/host.h"
#include "verify/compare.h"

namespace attune {
namespace {

TEST(conformance, one_device_alone_gives_six_hundred_runs) {
  size_t runs = 0;
  for (const Case& c : cases())
    for (const Backend* b : backends()) {
      Plan plan;
      runs += !b->only_by_name && golden_supports(c.problem).ok() && plan_on(*b, c.problem, this_cpu(), plan).ok();
    }
  EXPECT_GE(runs, 600u);
}

TEST(conformance, a_backend_that_supports_no_case_is_an_error) {
  const std::vector<Case> all = cases();
  for (const Backend* b : backends()) {
    if (b->only_by_name) continue;
    bool claims = false;  // on any device, present or not: supports() is pure
    for (const std::string_view word : {"cpu", "cpu:scalar", "a100", "h200"}) {
      Device d;
      ASSERT_TRUE(device_named(word, d).ok());
      for (const Case& c : all) claims |= b->supports(c.problem, d).ok();
    }
    EXPECT_TRUE(claims) << b->name;
  }
}

}  // namespace
}  // namespace attune
