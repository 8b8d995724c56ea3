// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/peak.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "machine/cuda/events.h"

namespace attune {
namespace {

// A line such as "VmHWM:" of /proc/self/status in bytes; below 0 if it is missing.
double line_of_status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::string word;
  for (double kib; file >> word;)
    if (word == name && file >> kib) return kib * 1024;
  return -1;
}

double free_bytes(int gpu) {
  cuda::Facts facts;
  return cuda::facts_of(gpu, facts).ok() ? double(facts.free_bytes) : -1;
}

}  // namespace

PeakMemory::PeakMemory(int gpu) : gpu_(gpu) {
  if (gpu >= 0) {
    start_ = free_bytes(gpu);
    return;
  }
#ifdef __GLIBC__
  malloc_trim(0);  // freed but still resident pages would be reused without being counted
#endif
  std::ofstream reset("/proc/self/clear_refs");  // 5: resets the high-water mark to the resident size
  reset << "5" << std::flush;
  if (reset) start_ = line_of_status("VmRSS:");
}

double PeakMemory::bytes() const {
  const double now = gpu_ >= 0 ? free_bytes(gpu_) : line_of_status("VmHWM:");
  if (start_ < 0 || now < 0) return -1;
  return std::max(0.0, gpu_ >= 0 ? start_ - now : now - start_);
}

}  // namespace attune
