// Rows that hold a NaN or an infinity. A weight of 0 times such a row is NaN. Where a mask hides some pair of a tile,
// these rows are therefore left out of its products, as rows of zeros, and their visible pairs are added one by one.
// Hidden ones then change no bit. Tiles without a hidden pair need no care, so only the edges of a mask are searched.
#pragma once
#include <cstring>

#include "core/number.h"

namespace attune::cpu {

alignas(64) inline constexpr char kZeroRow[256 * sizeof(float)] = {};  // for any dtype

// Integers compare in vectors on every CPU.
template <class Bits>
bool all_finite(const void* row, int n, Bits exponent) {
  Bits any = 0;
  for (int d = 0; d < n; ++d) {
    Bits x;
    std::memcpy(&x, static_cast<const char*>(row) + size_t(d) * sizeof x, sizeof x);
    any |= Bits((x & exponent) == exponent);
  }
  return !any;
}
inline bool is_finite(DType t, const void* row, int n) {
  if (t == DType::f32) return all_finite<uint32_t>(row, n, 0x7F800000);
  return all_finite<uint16_t>(row, n, t == DType::f16 ? 0x7C00 : 0x7F80);
}

}  // namespace attune::cpu
