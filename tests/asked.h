// SPDX-License-Identifier: Apache-2.0
// Problems, devices and other inputs of a test, written in the same text that users write. A line that does not parse
// fails the test that uses it.
#pragma once
#include <gtest/gtest.h>

#include "core/device.h"
#include "core/problem.h"

namespace attune {

inline Problem problem(std::string_view line) {
  Problem p;
  const Status s = parse(line, p);
  EXPECT_TRUE(s.ok()) << s.message << ": " << line;
  return p;
}

// A device by name; it need not be present.
inline Device known(std::string_view word) {
  Device d;
  EXPECT_TRUE(known_device(word, d).ok()) << word;
  return d;
}

}  // namespace attune
