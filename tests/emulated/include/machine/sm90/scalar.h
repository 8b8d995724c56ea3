#pragma once
#include "tests/emulated/gpu.h"

namespace attune::sm90 {

inline float min_or_nan(float a, float b) { return a != a ? a : b != b ? b : std::min(a, b); }
inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  std::memcpy(&x, emulated::shared(from), 4);
  return x;
}

}  // namespace attune::sm90
