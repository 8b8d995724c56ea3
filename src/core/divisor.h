// SPDX-License-Identifier: Apache-2.0
// Division by a divisor that the host prepared: one multiplication and one shift instead of about twenty GPU
// instructions. Kernels use it to decode their coordinates, which dominates short kernels.
#pragma once
#include "core/number.h"

namespace attune {

// Divides numbers below 2^31 by 1 ... 2^31 - 1 (Granlund and Montgomery's round-up method).
struct Divisor {
  uint32_t by = 1, factor = 1, shift = 0;

  constexpr Divisor() = default;
  constexpr explicit Divisor(uint32_t d) : by(d) {
    while ((uint64_t(1) << shift) < d) ++shift;
    factor = uint32_t(((((uint64_t(1) << shift) - d) << 32) / d) + 1);
  }
  ATTUNE_HD constexpr uint32_t divide(uint32_t n) const {
    return (uint32_t(uint64_t(n) * factor >> 32) + n) >> shift;
  }
  ATTUNE_HD constexpr uint32_t rest(uint32_t n) const { return n - divide(n) * by; }
};

}  // namespace attune
