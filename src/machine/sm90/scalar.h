// SPDX-License-Identifier: Apache-2.0
// Scalar instructions that have no name in C++.
#pragma once

#include <cstdint>

namespace attune::sm90 {

__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
  return x;
}

// Lane in the warp, and number of CTAs. Volatile: read anew at each call instead of being kept in a register.
__device__ inline int lane_id() {
  int x;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
  return x;
}
__device__ inline int grid_size() {
  int x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

}  // namespace attune::sm90
