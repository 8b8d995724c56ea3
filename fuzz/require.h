// SPDX-License-Identifier: Apache-2.0
// The assertion of the fuzz targets. Never compiled out, in any build.
#pragma once
#include <cstdio>
#include <cstdlib>

inline void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}
