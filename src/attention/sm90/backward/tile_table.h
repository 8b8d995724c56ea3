// Which tiles of keys there are where lengths are in tensors, and so unknown to the host: a kernel of one block writes
// those of one head into the workspace for sm90/backward/kernel.h. Those that no query sees are empty. The longest come
// first, the empty last; in a fixed order those of a sequence come from its end on, since a tile waits for those behind
// it.
#pragma once
#include "attention/tile/key_tile.h"
#include "plan/backend.h"

namespace attune::sm90 {

struct KeyTableParams {
  Problem problem;
  DenseArgs args;
  KeyTile* table;  // [key_table_size]
  int tile_q, tile_k;
  bool ordered;
};

ATTUNE_HD inline int64_t key_table_size(const Problem& p, int tile_k) { return p.batch * ceil_div(p.len_k, tile_k); }

Status make_key_table(std::string_view who, const KeyTableParams&, int device, Stream);

}  // namespace attune::sm90
