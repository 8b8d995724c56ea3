// What a fuzz target holds to be true. Never compiled out, whatever the build.
#pragma once
#include <cstdio>
#include <cstdlib>

inline void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}
