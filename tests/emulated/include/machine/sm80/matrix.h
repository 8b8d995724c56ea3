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
inline float exp2_fast(float x) { return std::exp2(x); }
inline float row_max(float x) {
  x = std::fmax(x, __shfl_xor_sync(~0u, x, 1));
  return std::fmax(x, __shfl_xor_sync(~0u, x, 2));
}
inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace attune::sm80
