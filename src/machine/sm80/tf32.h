// SPDX-License-Identifier: Apache-2.0
// f32 on tensor cores by mma.sync. They take tf32, which stores 10 bits of the mantissa instead of 23. A number is
// rounded to tf32, or split into two tf32 numbers whose sum is exact to within 2^-21. In the second case (tf32x3),
// three products make one (small big + big small + big big; small small is below 2^-22 of it). Tensor cores truncate
// their sums instead of rounding them, which shows over thousands of terms (1.5e-5 after 2048). tf32x3 products are
// therefore summed there for a few terms only, and then by ordinary, rounded additions.
#pragma once
#include "machine/sm80/memory.h"

namespace attune::sm80 {

// A tile of floats in shared memory: rows of `columns` in panels of 32 (128 bytes). Within a panel the 16-byte chunks
// of a row are swizzled by the row index modulo 8. Eight rows of one chunk then lie in different banks (ldmatrix,
// cp.async), and so do eight neighbours in each of the rows 0, 2, 4, 6 or 1, 3, 5, 7 (load_transposed).
template <int rows, int columns>
struct FloatTile {
  static constexpr int kRows = rows, kColumns = columns;
  static constexpr int kBytes = rows * columns * 4;
  static_assert(columns % 32 == 0 && rows % 8 == 0);
  __device__ static constexpr uint32_t offset(int row, int column) {
    return uint32_t((column / 32 * kRows + row) * 128 + ((column % 32 / 4) ^ (row & 7)) * 16 + column % 4 * 4);
  }
  // Moves from an address in the first eight columns of a tile aligned to 128 bytes to the same row `by` (a multiple of
  // 8) columns further.
  __device__ static constexpr uint32_t further(uint32_t address, int by) {
    return (address ^ uint32_t(by % 32 * 4)) + uint32_t(by / 32 * kRows * 128);
  }
};

__device__ inline void copy4(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

__device__ inline float load_shared(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  return x;
}

// Rounds to nearest, ties away from 0. Propagates NaN.
__device__ inline uint32_t round_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

// N numbers of an operand; `small` is the rounding remainder, for tf32x3. The rounding then need not handle NaN, since
// `small` is NaN; tensor cores truncate `small` themselves, symmetrically.
template <bool three, int N>
struct Operand {
  uint32_t big[N], small[three ? N : 1];

  __device__ void set(int n, float x) {
    if constexpr (three) {
      big[n] = (__float_as_uint(x) + 0x1000u) & 0xFFFFE000u;
      small[n] = __float_as_uint(x - __uint_as_float(big[n]));
    } else {
      big[n] = round_tf32(x);
    }
  }
  __device__ void set_bits(int n, uint32_t bits) { set(n, __uint_as_float(bits)); }
};
template <bool three>
using OperandA = Operand<three, 4>;  // 16 x 8: rows lane / 4 (+ 8 in 1, 3), columns lane % 4 (+ 4 in 2, 3)
template <bool three>
using OperandB = Operand<three, 2>;  // 8 x 8: depth lane % 4 (+ 4), column lane / 4

__device__ inline void multiply_add_tf32(Accumulator& d, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d.c[0]), "+f"(d.c[1]), "+f"(d.c[2]), "+f"(d.c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <bool three>
__device__ inline void multiply_add(Accumulator& d, const OperandA<three>& a, const OperandB<three>& b) {
  if constexpr (three) {
    multiply_add_tf32(d, a.small, b.big);
    multiply_add_tf32(d, a.big, b.small);
  }
  multiply_add_tf32(d, a.big, b.big);
}
__device__ inline void add(Accumulator& to, const Accumulator& x) {
#pragma unroll
  for (int n = 0; n < 4; ++n) to.c[n] += x.c[n];
}

// Loads 16 rows by 8 columns of a tile as the left operand. Address of a lane: row lane % 16, column lane / 16 * 4.
// Without tf32x3 the tile is already rounded: every tile of the other operand reuses it.
template <bool three>
__device__ inline void load_rows(OperandA<three>& to, uint32_t address) {
  uint32_t r[4];
  load_matrix4(r, address);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if constexpr (three) to.set_bits(n, r[n]);
    else to.big[n] = r[n];
  }
}
__device__ inline void round_shared16(uint32_t at) {
  const uint4 x = load_shared16(at);
  const uint32_t four[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int n = 0; n < 4; ++n) store_shared(at + n * 4, round_tf32(__uint_as_float(four[n])));
}
// Loads 16 rows by 8 columns as two right operands, transposed: depth runs along the rows. Address of a lane: row lane
// / 16 * 8 + lane % 8, column lane / 8 % 2 * 4.
template <bool three>
__device__ inline void load_columns(OperandB<three> (&to)[2], uint32_t address) {
  uint32_t r[4];
  load_matrix4(r, address);
#pragma unroll
  for (int n = 0; n < 4; ++n) to[n / 2].set_bits(n % 2, r[n]);
}
// Loads 8 rows by 8 columns as the right operand. Depth runs down the rows in the order 0, 2, 4, 6, 1, 3, 5, 7: the
// column order of an accumulator that weights() converts to a left operand. `even` and `odd`: addresses of rows 2 (lane
// % 4) and 2 (lane % 4) + 1, column lane / 4.
template <bool three>
__device__ inline void load_transposed(OperandB<three>& to, uint32_t even, uint32_t odd) {
  to.set(0, load_shared(even)), to.set(1, load_shared(odd));
}
template <bool three>
__device__ inline void weights(OperandA<three>& to, const Accumulator& from) {
  to.set(0, from.c[0]), to.set(1, from.c[2]), to.set(2, from.c[1]), to.set(3, from.c[3]);
}

}  // namespace attune::sm80
