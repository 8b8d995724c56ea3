// SPDX-License-Identifier: Apache-2.0
// A clock in nanoseconds that can also sleep. It is a value, so that tests can supply a clock they control.
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

// CLOCK_MONOTONIC_RAW if available: NTP does not adjust it while a sample runs.
Clock host_clock();
// The smallest step of a clock in nanoseconds, at least 1. Samples are made long compared with it.
double resolution(const Clock&);

}  // namespace attune
