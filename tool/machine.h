// The facts about this machine that a measurement depends on and a person can change, as far as the system tells them.
// Everything here is read, nothing is measured; what cannot be read is empty or 0.
#pragma once
#include <string>
#include <vector>

#include "core/device.h"
#include "tool/commands/commands.h"

namespace attune {

struct CacheLevel {
  std::string name{};  // "L1d", "L2", "L3"
  double bytes = 0;
};

struct Gpu {
  Device device{};
  double memory_bytes = 0;
};

struct Machine {
  Device cpu{};
  int cpus_online = 0;       // of the whole machine; cpu.units is what this process uses
  std::vector<CacheLevel> caches{};
  double memory_bytes = 0, memory_free_bytes = 0;
  std::string governor{};    // of CPU 0
  std::string system{};      // "Linux 6.1.0 aarch64"
  std::string driver{};      // NVIDIA's, as "CUDA 13.0"
  std::vector<Gpu> gpus{};
  std::string no_gpu{};      // why there are none
};

Machine this_machine();

// What it means that device_named refuses a word: one that names no device is wrong usage, a device that is not here,
// or that this build has no code for, is the machine.
Exit exit_of_device(std::string_view word);

}  // namespace attune
