// SPDX-License-Identifier: Apache-2.0
// Transfers between registers and memory: pairs of 16-bit numbers, shared memory by address, and additions in global
// memory. Pairs use PTX like cuda_fp16.h and cuda_bf16.h, which would cost every including file 0.6 s of compile time.
#pragma once
#include "machine/sm80/mma.h"

namespace attune::sm80 {

template <class T>
__device__ inline float2 unpack(uint32_t two) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return {__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
  } else {
    float2 x;
    asm("{.reg .f16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;}"
        : "=f"(x.x), "=f"(x.y)
        : "r"(two));
    return x;
  }
}

__device__ inline void store_shared(uint32_t to, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline uint4 load_shared16(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

// Returns x, but hides its origin from the compiler. Addresses are then computed where they are used instead of being
// kept by the dozen in registers around a loop.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// threadIdx.x, read again, so that it need not stay in a register.
__device__ inline int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// A matrix in global memory whose layout only these functions use: fragments of 16 x 8, one Accumulator each, 128
// numbers. A warp adds a fragment with a single instruction on GPUs with 16-byte reductions, and with four full lines
// elsewhere.
constexpr int kFragment = 128;
__device__ inline void add_fragment(float* to, int lane, const Accumulator& x) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to + lane * 4), "f"(x.c[0]), "f"(x.c[1]), "f"(x.c[2]),
               "f"(x.c[3])
               : "memory");
#else
  for (int e = 0; e < 4; ++e) atomicAdd(to + e * 32 + lane, x.c[e]);
#endif
}

__device__ inline Accumulator read_fragment(const float* from, int lane) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const float4 x = *reinterpret_cast<const float4*>(from + lane * 4);
  return {{x.x, x.y, x.z, x.w}};
#else
  return {{from[lane], from[32 + lane], from[64 + lane], from[96 + lane]}};
#endif
}

// A counter in global memory shared by CTAs: a thread that reads n sees everything written before the n-th add.
__device__ inline int load_count(const int* from) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
// Reads memory every time; the compiler may not cache the value.
__device__ inline uint64_t load_mark(const uint64_t* from) {
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}
__device__ inline void add_count(int* to) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(to) : "memory");
}
// The same, and returns the previous count; ordered after everything that other threads did before theirs.
__device__ inline int next_count(int* to) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(to) : "memory");
  return before;
}

// Adds two adjacent 16-bit numbers in one operation.
template <class T>
__device__ inline void add_pair(T* to, float low, float high) {
  const uint32_t two = pack<T>(low, high);
  [[maybe_unused]] uint32_t was;
  if constexpr (std::is_same_v<T, F16>) {
    asm volatile("atom.add.noftz.f16x2 %0, [%1], %2;" : "=r"(was) : "l"(to), "r"(two) : "memory");
  } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("atom.add.noftz.bf16x2 %0, [%1], %2;" : "=r"(was) : "l"(to), "r"(two) : "memory");
#else
    uint32_t* const at = reinterpret_cast<uint32_t*>(to);
    uint32_t now = *at;
    do {
      uint32_t sum;
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(two), "r"(0x3F803F80u), "r"(was = now));
      now = atomicCAS(at, was, sum);
    } while (was != now);
#endif
  }
}

}  // namespace attune::sm80
