// SPDX-License-Identifier: Apache-2.0
// State of a working GPU from NVIDIA's management library: clocks, power, temperature, reasons for lower clocks, and
// energy. Opened at run time without its headers: nvml.cpp lists the few constants.
#pragma once
#include <cstdint>
#include <string>

#include "core/status.h"

namespace attune::cuda {

struct GpuIdentity {
  std::string uuid{}, vbios{}, driver{};    // "GPU-...", "96.00.74.00.01", "580.65.06"
  double power_limit_w = 0;
  double most_sm_mhz = 0;
  int ecc = -1, mig = -1;                   // 1: on, 0: off, -1: unknown
  int pcie_generation = 0, pcie_lanes = 0;  // fastest generation of card and slot, and current width
};

struct GpuReading {
  double sm_mhz = 0, memory_mhz = 0, watts = 0, celsius = 0;
  uint64_t reasons = 0;  // bits: reasons for a lower clock
};

// "power cap, thermal slowdown": the bits that slow work down; "" if none is set.
std::string slowed_by(uint64_t reasons);

class Nvml {
 public:
  // The GPU at this PCI address: CUDA's and NVML's indices may differ. A refusal names the missing part.
  Status open(const std::string& pci);
  bool is_open() const { return device_ != nullptr; }
  // Values that cannot be read stay 0 or empty.
  GpuIdentity identity() const;
  GpuReading read() const;
  double joules() const;  // since the driver was loaded, in steps of some 20 ms; below 0: unknown

 private:
  void* device_ = nullptr;
};

}  // namespace attune::cuda
