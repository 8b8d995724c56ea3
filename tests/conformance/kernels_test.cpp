// SPDX-License-Identifier: Apache-2.0
// The short list of cases for slow tools covers every kernel that the full list runs.
#include "verify/cases/kernels.h"

#include <gtest/gtest.h>

#include <set>

#include "machine/host.h"
#include "verify/compare.h"

namespace attune {
namespace {

// The kernels that plans would run, for every backend that accepts a case.
std::set<std::string> kernels(const std::vector<Case>& cases, const Device& d) {
  std::set<std::string> all;
  for (const Case& c : cases)
    for (const Backend* b : backends()) {
      Plan plan;
      if (!golden_supports(c.problem).ok() || !plan_on(*b, c.problem, d, plan).ok()) continue;
      all.insert(join(b->name, " ", plan.kernel, " ", plan.tile_q, "x", plan.tile_k, " ", name(c.problem.dtype.q), " ",
                      plan.splits > 1 ? " split" : ""));
      all.insert(join(b->name, " ", name(c.problem.pass), " ", name(c.problem.keys)));
    }
  return all;
}

TEST(Kernels, every_one_has_a_case) {
  const std::vector<Case> all = cases();
  for (const char* word : {"cpu", "h200", "l4"}) {
    Device d;
    ASSERT_TRUE(device_named(word, d).ok());
    const std::vector<Case> chosen = case_of_each_kernel(all, backends(), d);
    if (d.kind == DeviceKind::cuda) {
      EXPECT_LT(chosen.size(), all.size() / 3) << word;
    }
    EXPECT_EQ(kernels(chosen, d), kernels(all, d)) << word;
  }
}

TEST(Kernels, of_two_cases_of_a_kernel_the_smaller_is_taken) {
  std::vector<Case> two(2);
  ASSERT_TRUE(parse("forward f32 b2 h1 q64 k64 d64 full", two[0]).ok());
  ASSERT_TRUE(parse("forward f32 b1 h1 q64 k64 d64 full", two[1]).ok());
  const Backend* only[] = {find_backend("cpu_forward")};
  const std::vector<Case> chosen = case_of_each_kernel(two, only, this_cpu());
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(name(chosen[0]), "forward f32 b1 h1 q64 k64 d64 full");
}

// A larger case whose rows every kernel can load is preferred; otherwise a kernel that refuses unaligned rows would
// have no case.
TEST(Kernels, a_case_of_unaligned_rows_is_the_last_choice) {
  std::vector<Case> two(2);
  ASSERT_TRUE(parse("forward f32 b1 h1 q64 k64 d64 full | pad=3", two[0]).ok());
  ASSERT_TRUE(parse("forward f32 b2 h1 q64 k64 d64 full", two[1]).ok());
  const Backend* only[] = {find_backend("cpu_forward")};
  const std::vector<Case> chosen = case_of_each_kernel(two, only, this_cpu());
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(name(chosen[0]), "forward f32 b2 h1 q64 k64 d64 full");
}

}  // namespace
}  // namespace attune
