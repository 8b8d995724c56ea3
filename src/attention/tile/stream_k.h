// SPDX-License-Identifier: Apache-2.0
// Stream-K for the last query tiles, which would leave SMs idle. Their key tiles, all of them back to back, are divided
// evenly among the persistent CTAs of a kernel. With more CTAs than query tiles, a CTA has key tiles of at most two.
#pragma once
#include "core/number.h"

namespace attune {

struct StreamK {
  // Query tiles (0: no stream-K), key tiles per CTA, key tiles per query tile. All key tiles together are under 2^31.
  int tiles, share, steps;

  // The CTA's query tile `number`, counted from 0; `tiles` if the CTA has fewer.
  ATTUNE_HD int tile(int block, int number) const {
    const int begin = block * share, all = tiles * steps, tile = begin / steps + number;
    const int end = begin + share < all ? begin + share : all;
    return tile * steps >= end || begin >= end ? tiles : tile;
  }
  // The CTA's key tiles first..last of that query tile, counted from the end of the keys, the order of the walk.
  struct KeyTiles { int first, last; };
  ATTUNE_HD KeyTiles key_tiles(int block, int tile) const {
    const int begin = block * share - tile * steps, end = begin + share;
    return {end < steps ? steps - end : 0, steps - 1 - (begin > 0 ? begin : 0)};
  }
  ATTUNE_HD int first_block(int tile) const { return tile * steps / share; }
  ATTUNE_HD int last_block(int tile) const { return ((tile + 1) * steps - 1) / share; }
  // Slot of their partial result, unique, less than CTAs + tiles.
  ATTUNE_HD static int place(int block, int tile) { return block + tile; }
};

}  // namespace attune
