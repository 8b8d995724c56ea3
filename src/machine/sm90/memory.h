// SPDX-License-Identifier: Apache-2.0
// Memory instructions of Hopper kernels: ordered loads of read-only global memory, vector access to shared memory,
// vector adds and L2 prefetch. Also a fast reciprocal and masks from bits.
#pragma once
#include <cstdint>

namespace attune::sm90 {

// Reads 4 bytes, or 8 bytes aligned to 8. No thread may write them during the kernel. Loads stay in program order.
__device__ inline void load_global(const void* from, uint32_t& a) {
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(a) : "l"(from));
}
__device__ inline void load_global(const void* from, uint32_t& a, uint32_t& b) {
  asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(from));
}
// Four floats; the address is aligned to 16.
__device__ inline float4 load_shared4(uint32_t from) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(from));
  return four;
}
__device__ inline void store_shared4(uint32_t to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// Adds to four floats in global memory, aligned to 16. The order among threads is undefined.
__device__ inline void add_global4(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// Prefetches `bytes`, a multiple of 16, into L2. Rounds `from` down to 16, so it reads nothing past from + bytes.
__device__ inline void prefetch_global(const char* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(reinterpret_cast<uintptr_t>(from) & ~uintptr_t(15)),
               "r"(bytes));
}

__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Repeats the top bits of bytes `byte` and `byte + 1` 16 times each, the first in the low half.
template <int byte>
__device__ inline uint32_t spread_bits(uint32_t x) {
  uint32_t two;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(two) : "r"(x), "n"(0x9988 + byte * 0x1111));
  return two;
}

}  // namespace attune::sm90
