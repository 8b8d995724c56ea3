// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/number.h"
#include "tests/emulated/gpu.h"
#include "vector_types.h"

namespace attune::sm80 {

template <class T>
uint32_t pack(float low, float high) { return T(low).bits | uint32_t(T(high).bits) << 16; }
template <class T>
float2 unpack(uint32_t two) {
  T low, high;
  low.bits = uint16_t(two), high.bits = uint16_t(two >> 16);
  return {float(low), float(high)};
}
// Four 8 x 8 matrices; each lane gives the address of one row. A lane receives two numbers of row lane / 4 per matrix.
inline void load_matrix4(uint32_t (&r)[4], uint32_t address) {
  const auto rows = emulated::tell(&address, 1);
  emulated::reads_shared(address, 16);
  for (int n = 0; n < 4; ++n)
    std::memcpy(&r[n], emulated::shared(rows[n * 8 + emulated::lane() / 4][0] + uint32_t(emulated::lane() % 4 * 4)), 4);
}
inline float exp2_fast(float x) { return std::exp2(x); }
inline float min_or_nan(float a, float b) { return a != a || a < b ? a : b; }
inline float row_max(float x) {
  x = std::fmax(x, __shfl_xor_sync(~0u, x, 1));
  return std::fmax(x, __shfl_xor_sync(~0u, x, 2));
}
inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace attune::sm80
