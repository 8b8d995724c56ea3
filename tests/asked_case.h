// SPDX-License-Identifier: Apache-2.0
// Cases for tests, in the syntax of `attune parity`. A line that does not parse fails its test.
#pragma once
#include <gtest/gtest.h>

#include "verify/cases/cases.h"

namespace attune {

// A problem and a description of its inputs: "forward f32 b1 h1 q8 k8 d8 full | seed=3".
inline Case case_of(std::string_view line) {
  Case c;
  const Status s = parse(line, c);
  EXPECT_TRUE(s.ok()) << s.message << ": " << line;
  return c;
}

}  // namespace attune
