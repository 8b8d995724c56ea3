// A clock in nanoseconds, and waiting by it. A value, so that tests run on a clock they turn themselves.
#pragma once
#include <cstdint>

namespace attune {

struct Clock {
  int64_t (*read)(void* context) = nullptr;
  void* context = nullptr;
  void (*sleep)(void* context, int64_t ns) = nullptr;
  int64_t now() const { return read(context); }
  void rest(double ns) const {
    if (sleep && ns > 0) sleep(context, int64_t(ns));
  }
};

// CLOCK_MONOTONIC_RAW where there is one: no network time bends it while a sample runs.
Clock host_clock();
// The smallest step it shows, in nanoseconds, at least 1: samples are made long against it.
double resolution(const Clock&);

}  // namespace attune
