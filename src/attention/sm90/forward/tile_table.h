// Which tiles of queries there are where lengths or lists are in tensors, and so unknown to the host: a kernel of one
// block writes them into the workspace, those with most keys first, for sm90/forward/kernel.h to take one after the
// other. Sequences that end early leave no empty tiles.
#pragma once
#include "attention/sm90/forward/config.h"
#include "plan/backend.h"

namespace attune::sm90 {

struct TileTable {
  QueryTile* tile;  // [bound]: of one head, or, of lists, of all
  int* begin;       // [batch + 1]: a sequence's first, as they were before they were put in order; the last: how many
};

struct TableParams {
  Problem problem;
  DenseArgs args;
  TileTable table;
  int tile_q, tile_k;
};

// The most tiles that lengths in tensors can make.
inline int64_t table_bound(const Problem& p, int tile_q) {
  return p.batch * ceil_div(p.len_q, tile_q) * (p.mask.blocks.q ? p.heads_q : 1);
}

Status make_table(std::string_view who, const TableParams&, int device, Stream);

// The same where only the lists are in tensors.
struct ListTableParams {
  ListTiles tiles;
  QueryTile* table;
  int* count;  // how many there are
  int ahead;   // the first so many stay out: blocks find them themselves
};
Status make_table(std::string_view who, const Problem&, const ListTableParams&, int device, Stream);

}  // namespace attune::sm90
