// SPDX-License-Identifier: Apache-2.0
// A description of a device, as far as the planner needs it. It is plain data: planning for a device that is not
// present uses the same struct as planning for one that is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"
#include "core/tensor.h"

namespace attune {

// Capabilities of a CPU or of the software on it.
enum class Feature : uint32_t {
  neon,         // with half-precision conversions
  neon_bf16,    // BFMMLA, BFDOT
  avx2,         // with FMA and F16C
  avx512,       // F, BW, DQ, VL
  avx512_bf16,  // VDPBF16PS
  amx_bf16,     // TDPBF16PS, with OS permission to use tiles
  blas,         // a BLAS library can be opened
  count
};
constexpr uint32_t bit(Feature f) { return 1u << int(f); }

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int32_t index = 0;      // index among devices of its kind; -1: not present, planned for only
  int32_t arch = 0;       // 90 for Hopper; 0 for a CPU
  int32_t units = 1;      // SMs, or CPU threads to use
  uint32_t features = 0;  // bits of Feature; CPU only
  std::string name{};     // "NVIDIA H200", "Neoverse-V1"

  bool has(Feature f) const { return features & bit(f); }
};

std::string name(Feature);
// Devices that can be planned for without being present: "h200", "a100", ... The CPU of this machine and restrictions
// of it ("cpu:scalar") are in machine/host.h.
Status known_device(std::string_view word, Device& out);
std::string known_devices();  // "a100, h100, ..."

}  // namespace attune
