// SPDX-License-Identifier: Apache-2.0
// The query tiles of a problem whose lengths or block lists are in tensors, and so unknown to the host. A kernel of one
// CTA writes them to the workspace, those with most keys first. sm90/forward/kernel.h takes them one after another.
// Sequences that end early leave no empty tiles.
#pragma once
#include "attention/sm90/forward/config.h"
#include "plan/backend.h"

namespace attune::cuda {
class Launcher;
}

namespace attune::sm90 {

struct TileTable {
  QueryTile* tile;  // [bound]: tiles of one head; with lists, of all heads
  int* begin;       // [batch + 1]: first tile of each sequence before sorting; the last: number of tiles
};

struct TableParams {
  Problem problem;
  DenseArgs args;
  TileTable table;
  int tile_q, tile_k;
};

// Upper bound on the tiles for any lengths in tensors.
inline int64_t table_bound(const Problem& p, int tile_q) {
  return p.batch * ceil_div(p.len_q, tile_q) * (p.mask.blocks.q ? p.heads_q : 1);
}

Status make_table(const cuda::Launcher&, const TableParams&);
Status make_table(std::string_view who, const TableParams&, int device, Stream);  // without a launcher

// The same if only the block lists are in tensors.
struct ListTableParams {
  ListTiles tiles;
  QueryTile* table;
  int* count;  // number of tiles
  int ahead;   // the first `ahead` tiles are left out: CTAs find them on their own
};
Status make_table(const cuda::Launcher&, const ListTableParams&);

}  // namespace attune::sm90
