// SPDX-License-Identifier: Apache-2.0
// Products by mma.sync with tiles in shared memory. S = X Y^T: a warp has 16 rows of X and all kN * 8 rows of Y.
#pragma once
#include "machine/sm80/mma.h"

namespace attune::sm80 {

template <int kRows, int kColumns>
ATTUNE_HD constexpr int columns_of(SharedTile<kRows, kColumns>) { return kColumns; }

// `Rows`, `Columns`: the layouts of X and Y, at these addresses, with equally many columns.
template <class T, class Rows, class Columns, int kN>
__device__ __forceinline__ void multiply_tiles(Accumulator (&s)[kN], uint32_t rows, uint32_t columns, int warp,
                                               int lane) {
  constexpr int kDepth = columns_of(Rows{});
  static_assert(kDepth == columns_of(Columns{}));
#pragma unroll
  for (int n = 0; n < kN; ++n) s[n] = {};
  const uint32_t row = rows + Rows::offset(warp * 16 + lane % 16, lane / 16 * 8);
  const uint32_t column = columns + Columns::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    FragmentA one;
    load_matrix4(one.r, Rows::further(row, k));
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t two[4];
      load_matrix4(two, Columns::further(column, k) + n * 8 * 128);
      multiply_add<T>(s[n], one, {two[0], two[1]});
      multiply_add<T>(s[n + 1], one, {two[2], two[3]});
    }
  }
}

// sums += W Y: weights of the warp's 16 rows, packed as operands, times all 8 kDepth rows of Y. weights[n][h]: columns
// 8 n ... 8 n + 7, rows lane / 4 + 8 h.
template <class T, class Rows, int kDepth, int kColumns>
__device__ __forceinline__ void add_product(Accumulator (&sums)[kColumns], const uint32_t (&weights)[kDepth][2],
                                            uint32_t rows, int lane) {
  const uint32_t first = rows + Rows::offset(lane % 16, lane / 16 * 8);
#pragma unroll
  for (int k = 0; k < kDepth; k += 2) {
    const FragmentA one{{weights[k][0], weights[k][1], weights[k + 1][0], weights[k + 1][1]}};
#pragma unroll
    for (int d = 0; d < kColumns; d += 2) {
      uint32_t two[4];
      load_matrix4_transposed(two, Rows::further(first, d * 8) + k * 8 * 128);
      multiply_add<T>(sums[d], one, {two[0], two[1]});
      multiply_add<T>(sums[d + 1], one, {two[2], two[3]});
    }
  }
}

}  // namespace attune::sm80
