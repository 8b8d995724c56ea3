// SPDX-License-Identifier: Apache-2.0
// A query tile whose dQ is computed transposed, dQ^T[column x query] = K^T dS^T, so its queries need not be a multiple
// of 64. This header defines the layout of dS for that product and the layout of the dQ sums in memory. Kernels and
// tests share it.
//
// dS in shared memory: [query][key], in panels of 64 keys, one per warpgroup; rows of 128 bytes, swizzled.
// Sums in memory: [tile][column / 16][query / 8] fragments of 16 columns x 8 queries, 128 floats each, four per lane,
// as a warp holds them.
#pragma once
#include "core/number.h"

namespace attune {

struct TransposedTile {
  int queries;
  static constexpr int kColumns = 16, kFragment = 128;

  ATTUNE_HD constexpr int panel() const { return queries * 128; }
  // Byte offset into dS of a lane's row in its warpgroup's n-th store of four matrices: 16 queries x 16 keys.
  ATTUNE_HD constexpr int store(int group, int warp, int lane, int n) const {
    const int query = n * 16 + lane / 16 * 8 + lane % 8, vec16 = warp * 2 + lane / 8 % 2;
    return group * panel() + query * 128 + ((vec16 ^ (query & 7)) << 4);
  }
  // Byte offset into dS for the product with the n-th 16 keys.
  ATTUNE_HD constexpr int keys(int n) const { return n / 4 * panel() + n % 4 * 32; }
  // Offsets into a tile's sums, in floats: a warp's 16 columns, and the fragment of a query and a column.
  ATTUNE_HD constexpr int columns(int n) const { return n * kColumns * queries; }
  ATTUNE_HD constexpr int fragment(int query, int column) const {
    return columns(column / kColumns) + query / 8 * kFragment;
  }
  // Query and column of a lane's element e (of four), relative to the fragment.
  static ATTUNE_HD constexpr int query(int lane, int e) { return lane % 4 * 2 + e % 2; }
  static ATTUNE_HD constexpr int column(int lane, int e) { return e / 2 * 8 + lane / 4; }
};

}  // namespace attune
