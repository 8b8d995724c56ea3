// The last tiles of queries, where they would leave multiprocessors idle: their key tiles, all of them one behind the
// other, are divided evenly among the blocks of a kernel that stays. With more blocks than query tiles, a block has
// parts of two at most.
#pragma once
#include "core/number.h"

namespace attune {

struct StreamK {
  // Query tiles, none: nothing is shared; key tiles of a block, and of a query tile. All key tiles are under 2^31.
  int tiles, share, steps;

  // The query tile of which this block has its first (number 0), second ... part; `tiles`: it has none.
  ATTUNE_HD int tile(int block, int number) const {
    const int begin = block * share, all = tiles * steps, tile = begin / steps + number;
    const int end = begin + share < all ? begin + share : all;
    return tile * steps >= end || begin >= end ? tiles : tile;
  }
  // Key tiles of that part: first..last, counted from the end of the keys, as they are walked.
  struct Part { int first, last; };
  ATTUNE_HD Part part(int block, int tile) const {
    const int begin = block * share - tile * steps, end = begin + share;
    return {end < steps ? steps - end : 0, steps - 1 - (begin > 0 ? begin : 0)};
  }
  ATTUNE_HD int first_block(int tile) const { return tile * steps / share; }
  ATTUNE_HD int last_block(int tile) const { return ((tile + 1) * steps - 1) / share; }
  // Where that part goes, no two the same: fewer than blocks + tiles.
  ATTUNE_HD static int place(int block, int tile) { return block + tile; }
};

}  // namespace attune
