// Block lists, built where the data lives: from a named pattern, from a dense mask of blocks, or, of lists that are
// there, by key block. The arguments are those of the attention that follows: block_begin and block_column are written
// (of BlockOrigin::lists read), block_begin_k and block_row_k where they are given; lengths are read as an attention
// reads them, and q and k are only looked at for their extents.
#pragma once
#include "core/variant/blocks.h"
#include "plan/backend.h"

namespace attune {

struct BlockSource {
  BlockOrigin origin = BlockOrigin::pattern;
  Pattern pattern{};
  BlockMask mask{};
  int64_t* counts = nullptr;  // [BlockCount::count] beside the lists, or null
  bool checked = false;       // of a user: values of lists that are there, and what lies where; on the CPU
};

// On the CPU done when it returns; on a GPU ordered on the stream, without waiting and without reading back.
Status build_blocks(const Problem&, const Args&, const BlockSource&, Stream);

}  // namespace attune
