// Single numbers: instructions that C++ has no name for.
#pragma once

#include <cstdint>

namespace attune::sm90 {

// The smaller of two, and a NaN where one is: fminf gives the other one then.
__device__ inline float min_or_nan(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}

}  // namespace attune::sm90
