// Single numbers: instructions that C++ has no name for.
#pragma once

#include <cstdint>

namespace attune::sm90 {

__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
  return x;
}

}  // namespace attune::sm90
