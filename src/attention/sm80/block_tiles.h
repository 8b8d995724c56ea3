// SPDX-License-Identifier: Apache-2.0
// Tiles of rows that do not cross the blocks of a list.
#pragma once
#include "core/mask.h"

namespace attune::sm80 {

// Rows [first, last) of the n-th tile of `tile` rows. With a list (block > 0), tiles begin again at every block.
struct TileRange { int64_t first, last; };
__device__ inline TileRange tile_range(int n, int tile, int block) {
  int64_t first = int64_t(n) * tile, last = first + tile;
  if (block) {
    const int per_block = (block + tile - 1) / tile;
    const int64_t start = int64_t(n / per_block) * block;
    first = start + n % per_block * tile, last = min(first + tile, start + block);
  }
  return {first, last};
}

}  // namespace attune::sm80
