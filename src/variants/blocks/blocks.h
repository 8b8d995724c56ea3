// SPDX-License-Identifier: Apache-2.0
// Block lists, built on the device of the data: from a named pattern, from a dense block mask, or, for existing lists,
// by key block. The arguments are those of the attention that follows. block_begin and block_column are written (read
// with BlockOrigin::lists), block_begin_k and block_row_k are written if given. Lengths are read as in an attention;
// only the extents of q and k are used.
#pragma once
#include "core/variant/blocks.h"
#include "plan/backend.h"

namespace attune {

struct BlockSource {
  BlockOrigin origin = BlockOrigin::pattern;
  Pattern pattern{};
  BlockMask mask{};
  int64_t* counts = nullptr;  // [BlockCount::count] on the device of the lists, or null
  bool checked = false;       // user input: checks existing lists and overlaps; CPU only
};

// On the CPU complete on return; on a GPU ordered on the stream, without waiting and without reading back.
Status build_blocks(const Problem&, const Args&, const BlockSource&, Stream);

}  // namespace attune
