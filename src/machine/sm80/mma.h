// SPDX-License-Identifier: Apache-2.0
// Tensor cores by mma.sync: fragments of 16 x 16 and 16 x 8, loaded from swizzled shared memory by ldmatrix.
#pragma once

#include <cstdint>

#include "core/number.h"
#include "machine/sm80/cp_async.h"

namespace attune::sm80 {

// A tile of 16-bit elements in shared memory: rows of `kColumns`, in panels of 64 columns (128 bytes). Within a panel
// the 16-byte chunks of a row are swizzled by the row index modulo 8, so that eight rows of one chunk lie in different
// banks: ldmatrix and cp.async are both free of bank conflicts.
template <int kRows, int kColumns>
struct SharedTile {
  static constexpr int kPanels = (kColumns + 63) / 64, kPitch = 64;
  static constexpr int kElements = kRows * kPanels * kPitch;
  static constexpr int kBytes = kElements * 2;
  // Byte offset of the chunk at `column`, a multiple of 8.
  __device__ static constexpr uint32_t offset(int row, int column) {
    return uint32_t((column / 64 * kRows + row) * 128 + ((column % 64 / 8) ^ (row & 7)) * 16);
  }
  // Moves from the address of (row, column 0 or 8), in a tile aligned to 128 bytes, to the same row `columns` (a
  // multiple of 16) further. The swizzle is bitwise, so one exclusive or suffices.
  __device__ static constexpr uint32_t further(uint32_t address, int columns) {
    return (address ^ uint32_t(columns % 64 * 2)) + uint32_t(columns / 64 * kRows * 128);
  }
};

struct FragmentA { uint32_t r[4]; };  // 16 x 16, rows by depth
struct FragmentB { uint32_t r[2]; };  // 16 x 8, depth by columns
struct Accumulator { float c[4]; };   // 16 x 8: row lane / 4 (+ 8 in c[2], c[3]), columns 2 (lane % 4) + 0, 1

__device__ inline void load_matrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
__device__ inline void load_matrix4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

template <class T>
__device__ inline void multiply_add(Accumulator& d, const FragmentA& a, const FragmentB& b) {
  static_assert(sizeof(T) == 2);
  if constexpr (std::is_same_v<T, Bf16>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

// Rounds two numbers to T and packs them in one register, the first in the low half.
template <class T>
__device__ inline uint32_t pack(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, Bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The smaller of two numbers. Propagates NaN, unlike fminf.
__device__ inline float min_or_nan(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}

// Reductions over the four lanes that share a row of an accumulator.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace attune::sm80
