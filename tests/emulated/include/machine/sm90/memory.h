// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/emulated/gpu.h"
#include "vector_types.h"

namespace attune::sm90 {

inline void load_global(const void* from, uint32_t& a) { std::memcpy(&a, from, 4); }
inline void load_global(const void* from, uint32_t& a, uint32_t& b) {
  load_global(from, a), load_global(static_cast<const char*>(from) + 4, b);
}
inline float4 load_shared4(uint32_t from) {
  float4 four;
  emulated::reads_shared(from, 16);
  std::memcpy(&four, emulated::shared(from), 16);
  return four;
}
inline void store_shared4(uint32_t to, float a, float b, float c, float d) {
  const float four[] = {a, b, c, d};
  emulated::writes_shared(to, 16);
  std::memcpy(emulated::shared(to), four, 16);
}
inline void add_global4(float* to, float a, float b, float c, float d) {
  to[0] += a, to[1] += b, to[2] += c, to[3] += d;
}
inline void prefetch_global(const char*, int) {}
inline float reciprocal_fast(float x) { return 1.f / x; }
template <int byte>
uint32_t spread_bits(uint32_t x) {
  const auto half = [&](int at) { return x >> (8 * at + 7) & 1 ? 0xFFFFu : 0u; };
  return half(byte) | half(byte + 1) << 16;
}

}  // namespace attune::sm90
