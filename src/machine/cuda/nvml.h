// What NVIDIA's management library says of a GPU while it works: clocks, power, temperature, why it is slower than it
// could be, and the energy it took. Opened at run time; no header of it: the few numbers needed are in nvml.cpp.
#pragma once
#include <cstdint>
#include <string>

#include "core/status.h"

namespace attune::cuda {

struct GpuIdentity {
  std::string uuid{}, vbios{}, driver{};  // "GPU-...", "96.00.74.00.01", "580.65.06"
  double power_limit_w = 0;
  double most_sm_mhz = 0;
  int ecc = -1, mig = -1;                 // 1: on, 0: off, -1: not said
  int pcie_generation = 0, pcie_lanes = 0;  // the fastest that card and slot can do, and the width now
};

struct GpuReading {
  double sm_mhz = 0, memory_mhz = 0, watts = 0, celsius = 0;
  uint64_t reasons = 0;                   // bits: why the clock is not higher
};

// "power cap, thermal slowdown": those of the bits that slow work down; "" where none does.
std::string slowed_by(uint64_t reasons);

class Nvml {
 public:
  // The GPU at this place of the bus: CUDA's and NVML's own numbers may differ. A refusal says what is missing.
  Status open(const std::string& pci);
  bool is_open() const { return device_ != nullptr; }
  // What cannot be read stays 0 or empty.
  GpuIdentity identity() const;
  GpuReading read() const;
  double joules() const;  // since the driver was loaded, in steps of some 20 ms; below 0: not known

 private:
  void* device_ = nullptr;
};

}  // namespace attune::cuda
