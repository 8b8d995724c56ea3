// SPDX-License-Identifier: Apache-2.0
// The key tiles of a problem whose lengths are in tensors, and so unknown to the host. A kernel of one CTA writes those
// of one head to the workspace for sm90/backward/kernel.h. Tiles that no query sees are empty. The longest come first,
// the empty ones last. In a deterministic order the tiles of a sequence come from its end on, since a tile waits for
// those behind it.
#pragma once
#include "attention/tile/key_tile.h"
#include "core/problem.h"

namespace attune::cuda {
class Launcher;
}
namespace attune::sm90 {

struct KeyTableParams {
  Problem problem;
  DenseArgs args;
  KeyTile* table;  // [key_table_size]
  int tile_q, tile_k;
  bool deterministic;
};

ATTUNE_HD inline int64_t key_table_size(const Problem& p, int tile_k) { return p.batch * ceil_div(p.len_k, tile_k); }

Status make_key_table(const cuda::Launcher&, const KeyTableParams&);

}  // namespace attune::sm90
