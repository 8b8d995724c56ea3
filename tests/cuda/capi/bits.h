// SPDX-License-Identifier: Apache-2.0
// bf16 as users of the C interface see it: raw bits.
#pragma once
#include <cstdint>
#include <cstring>

inline uint16_t bf16(float x) {  // truncated, not rounded
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t(bits >> 16);
}

inline float number(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
