// Single numbers: instructions that C++ has no name for.
#pragma once

#include <cstdint>

namespace attune::sm90 {

// The smaller of two, and a NaN where one is: fminf gives the other one then.
__device__ inline float min_or_nan(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}

__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
  return x;
}

}  // namespace attune::sm90
