// SPDX-License-Identifier: Apache-2.0
// GPUs that can be planned for without being present.
#pragma once
#include <string_view>

namespace attune {

struct KnownGpu {
  std::string_view word, name;  // "h100", and as the driver says it: "NVIDIA H100 80GB HBM3"
  int arch, units, mib, gbs;    // compute capability, SMs, memory, bandwidth
  double bytes() const { return double(mib) * (1 << 20); }
};

// By its word or by the driver's name, whatever the case, the spaces and the maker's name are; null if unknown.
const KnownGpu* known_gpu(std::string_view name);

}  // namespace attune
