// SPDX-License-Identifier: Apache-2.0
// Powers of two for auto-vectorized loops.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/softmax.h"

namespace attune::cpu {

// 2^x for x below 126, in plain arithmetic that compilers vectorize; accurate to about 2 ulp. It compares bits instead
// of floats, which g++ 12 would not vectorize: the bits of negative floats rise as the floats fall. A negative NaN
// therefore becomes -126; a caller that must propagate it has to do so separately.
inline float power_of_two(float x) {
  constexpr float kShift = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
  x = std::bit_cast<float>(std::min(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(-126.f)));
  const float shifted = x + kShift, f = (x - (shifted - kShift)) * kLn2;
  const float e = 1.f + f * (1.f + f * (0.5f + f * (1.f / 6 + f * (1.f / 24 + f * (1.f / 120 + f * (1.f / 720))))));
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift) + 127;
  return e * std::bit_cast<float>(exponent << 23);
}

}  // namespace attune::cpu
