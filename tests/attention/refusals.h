// What GPU backends refuse, and in which words. Pure functions: no GPU is needed, but a build that has its code.
#pragma once
#include <span>

#include "plan/plan.h"
#include "tests/asked.h"

namespace attune {

class WithGpuCode : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("cuda_standard")) GTEST_SKIP() << "this build has no GPU code";
  }
};

struct Refusal {
  const char *backend, *line, *on, *says;  // part of a sentence that begins with the backend's name
};

inline void expect_refusals(std::span<const Refusal> all) {
  for (const Refusal& c : all) {
    const std::string said = find_backend(c.backend)->supports(problem(c.line), known(c.on)).message;
    EXPECT_TRUE(said.starts_with(join(c.backend, ": "))) << c.line << " says: " << said;
    EXPECT_NE(said.find(c.says), std::string::npos) << c.line << " says: " << said;
  }
}

}  // namespace attune
