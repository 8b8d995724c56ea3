// SPDX-License-Identifier: Apache-2.0
// Shared by the C++ tests of the C interface: checks that count failures, and the exit code. The C tests use world.h.
#pragma once
#include <cstdio>
#include <cstring>
#include <string>

#include "attune/attune.hpp"

inline int failures = 0;

inline void expect(bool ok, const std::string& what) {
  if (!ok) ++failures, std::printf("FAIL %s\n", what.c_str());
}

// Expects f to throw an attune::Error that contains `words`.
template <class F>
void refused(F f, const std::string& words) {
  try {
    f();
    expect(false, "not refused: " + words);
  } catch (const attune::Error& e) {
    expect(std::strstr(e.what(), words.c_str()), std::string(e.what()) + ", not: " + words);
  }
}

// Expects a failed call of the C interface whose error contains `words`.
inline void refused(int code, const char* words) {
  expect(code == 1 && std::strstr(attune_last_error(), words), std::string(attune_last_error()) + ", not: " + words);
}

inline int finish(const char* name) {
  if (failures) std::printf("%s: %d failures\n", name, failures);
  else std::printf("%s: all passed\n", name);
  return failures != 0;
}
