// What a machine is, as far as choosing needs to know. A plain description: planning for a machine that is not here
// takes the same struct as planning for this one.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"
#include "core/tensor.h"

namespace attune {

// What a CPU, or the software beside it, can do.
enum class Feature : uint32_t {
  neon,         // with half-precision conversions
  neon_bf16,    // BFMMLA, BFDOT
  avx2,         // with FMA and F16C
  avx512,       // F, BW, DQ, VL
  avx512_bf16,  // VDPBF16PS
  amx_bf16,     // TDPBF16PS, and the system lets this process use tiles
  blas,         // a BLAS library can be opened
  count
};
constexpr uint32_t bit(Feature f) { return 1u << int(f); }

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int32_t index = 0;      // among those of its kind; -1: not here, only planned for
  int32_t arch = 0;       // 90 for Hopper; 0 for a CPU
  int32_t units = 1;      // multiprocessors, or threads to use
  uint32_t features = 0;  // bits, of a CPU
  std::string name{};     // "NVIDIA H200", "Neoverse-V1"

  bool has(Feature f) const { return features & bit(f); }
};

std::string name(Feature);
// Devices one can plan for without having them: "h200", "a100", ... The CPU of this machine, and restrictions of it
// ("cpu:scalar"), are machine/host.h's to say.
Status known_device(std::string_view word, Device& out);
std::string known_devices();  // "a100, h100, ..."

}  // namespace attune
