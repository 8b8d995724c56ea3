// SPDX-License-Identifier: Apache-2.0
// Rows that hold a NaN or an infinity. A weight of 0 times such a row is NaN. Where a mask hides some pair of a tile,
// these rows are therefore left out of its products, as rows of zeros, and their visible pairs are added one by one.
// Hidden ones then change no bit. Tiles without a hidden pair need no care, so only the edges of a mask are searched.
#pragma once
#include "machine/cpu/kernels.h"

namespace attune::cpu {

alignas(64) inline constexpr char kZeroRow[256 * sizeof(float)] = {};  // for any dtype

// Marks the rows that are not finite; true if there are any.
inline bool mark_rows(const CpuKernels& m, const void* const* rows, int n, int dim, bool* marks) {
  const bool any = !m.finite(rows, n, dim);
  for (int r = 0; r < n; ++r) marks[r] = any && !m.finite(rows + r, 1, dim);
  return any;
}

}  // namespace attune::cpu
