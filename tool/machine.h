// SPDX-License-Identifier: Apache-2.0
// Facts about this machine that affect measurements, as far as the system reports them. Everything is read, nothing is
// measured; a fact that cannot be read is empty or 0.
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
  int cpus_online = 0;       // CPUs of the whole machine; cpu.units is what this process may use
  std::vector<CacheLevel> caches{};
  double memory_bytes = 0, memory_free_bytes = 0;
  std::string governor{};    // frequency governor of CPU 0
  std::string system{};      // "Linux 6.1.0 aarch64"
  std::string driver{};      // CUDA version of the NVIDIA driver: "CUDA 13.0"
  std::vector<Gpu> gpus{};
  std::string no_gpu{};      // why no GPU was found
};

Machine this_machine();

// Exit code for a word that device_named() refuses: kUsage if it does not name a device, kMachine if the device is not
// in this machine or this build has no code for it.
Exit exit_of_device(std::string_view word);

// What --backend names, else what ATTUNE_BACKEND names, which the library obeys too; empty: the planner's choice.
struct ForcedBackend {
  std::string name{};
  bool by_environment = false;
};
Status forced_backend(const std::string& option, ForcedBackend& out);
inline constexpr const char* kByEnvironment = "selected by ATTUNE_BACKEND";

}  // namespace attune
