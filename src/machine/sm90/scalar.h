// Single numbers: instructions that C++ has no name for.
#pragma once

#include <cstdint>

namespace attune::sm90 {

__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
  return x;
}

// For a microsecond or so: of a thread that waits for what takes long.
__device__ inline void pause() { asm volatile("nanosleep.u32 1000;"); }

// Not kept in a register between two calls: of the warp, and how many blocks there are.
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
