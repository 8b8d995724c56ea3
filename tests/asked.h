// What a test asks for, in the words that users write. A line that cannot be read fails the test that wrote it.
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

// A machine by its name; it need not be here.
inline Device known(std::string_view word) {
  Device d;
  EXPECT_TRUE(known_device(word, d).ok()) << word;
  return d;
}

}  // namespace attune
