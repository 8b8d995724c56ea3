// SPDX-License-Identifier: Apache-2.0
// Other processes on a GPU, from NVIDIA's management library, opened at run time without its headers. Without a driver,
// and where the library does not list this process (in a container with process ids of its own), nothing is known.
#pragma once
#include <string>

#include "tool/timing/load.h"

namespace attune {

class GpuUse {
 public:
  // As in nvml.h.
  struct Process { unsigned id = 0; unsigned long long bytes = 0; unsigned gpu_instance = 0, compute_instance = 0; };
  struct Sample {
    unsigned id = 0;
    unsigned long long time_us = 0;
    unsigned sm = 0, memory = 0, encoder = 0, decoder = 0;  // percent
  };
  // NVML's functions, or a test's. Both fill a list of at most `count` and set `count`; with null they only count.
  struct Functions {
    int (*processes)(void* device, unsigned* count, Process*) = nullptr;
    int (*samples)(void* device, Sample*, unsigned* count, unsigned long long since_us) = nullptr;
  };

  GpuUse() = default;
  GpuUse(const Functions& functions, void* device) : functions_(functions), device_(device) {}
  void open(const std::string& pci);  // the GPU at this PCI address; on failure nothing is known
  void read(LoadCounters& out);       // the largest use since the last reading

 private:
  Functions functions_{};
  void* device_ = nullptr;
  unsigned long long seen_us_ = 0;
};

}  // namespace attune
