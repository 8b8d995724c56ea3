// SPDX-License-Identifier: Apache-2.0
// One query tile, as a kernel that takes tiles one after another sees it: which rows, which key tiles, and which keys
// its rows see. This header derives it from lengths and block lists in tensors. A plain problem needs less (find_tile
// in sm90/forward/producer.h).
#pragma once
#include "core/args.h"
#include "core/divisor.h"

namespace attune {

inline constexpr int kUnboundedTile = 1 << 29;  // beyond any key; the sum of two fits in an int

// Key tiles run from last down to first.
struct alignas(16) QueryTile {
  int row, end, head, batch;   // in q and out: first row, end of its sequence, head, batch
  int first, last;             // key tiles; of a list: positions in it; of two lists: the second starts at first
  int keys;                    // keys of its sequence
  int from, until;             // the first row sees keys from..until - 1, each next row one key further
  int query, sequence;         // first row and batch entry, as the problem counts them
  int k_row, k_head, k_batch;  // location of key 0 of its sequence
  int column;                  // of a list: its first entry; of part of a stream-K tile: its slot plus one
  int stand;                   // position of the first row, with key 0 at 0
};

ATTUNE_HD inline int query_tiles(const Sequence& s, int tile_q) { return int(ceil_div(s.len_q, tile_q)); }

// Takes the key tiles from a block list. A block has a whole number of tiles, or half a query tile: then the tile has
// the lists of two block rows, back to back. An empty list becomes one fully masked key tile.
ATTUNE_HD inline void set_list(QueryTile& t, const BlockList& list, int rows, int tile_q, int tile_k) {
  const Blocks size = list.blocks;
  const int per_block = size.k / tile_k, first = t.query / size.q;
  t.first = 0, t.column = list.entry(first), t.last = list.count(first) * per_block - 1;
  if (size.q < tile_q) {
    const int begun = t.column + list.count(first), there = rows > size.q ? list.entry(first + 2) - begun : 0;
    t.first = t.last + 1, t.last += (there > 0 ? there : 0) * per_block;
  }
  if (t.last < 0) t.last = t.keys = 0;
}

// Query tile n of a sequence. If it sees nothing, it has one fully masked key tile.
template <int Roles>
ATTUNE_HD QueryTile query_tile(const Problem& p, const ArgsOf<Roles>& a, int b, const Sequence& s, int head, int n,
                               int tile_q, int tile_k) {
  constexpr int64_t kUnbounded = kUnboundedTile;
  const int row = n * tile_q, rows = s.len_q - row < tile_q ? s.len_q - row : tile_q;
  const int64_t stand = s.band.q_first - s.band.k_first + row;
  QueryTile t{.row = s.q_first + row,
              .end = s.q_first + s.len_q,
              .head = head,
              .batch = s.q_batch,
              .first = 0,
              .last = 0,
              .keys = s.len_k,
              .from = clamp(stand - s.band.left, -kUnbounded, kUnbounded),
              .until = clamp(stand + s.band.right + 1, -kUnbounded, kUnbounded),
              .query = row,
              .sequence = b,
              .k_row = s.k_first,
              .k_head = head / (p.heads_q / p.heads_kv),
              .k_batch = s.k_batch,
              .column = 0,
              .stand = clamp(stand, -kUnbounded, kUnbounded)};
  const int begin = clamp(t.from, 0, s.len_k), end = clamp(t.until + rows - 1, 0, s.len_k);
  if (const Blocks size = p.mask.blocks; size.q) {
    set_list(t, {size, a.template row<const int32_t>(Role::block_begin, b, 0, head), nullptr}, rows, tile_q, tile_k);
  } else if (begin < end) {
    t.first = begin / tile_k, t.last = (end - 1) / tile_k;
  }
  return t;
}

// Tiles of block lists if all sequences have the same lengths, from a few numbers. A kernel that runs once reads its
// parameters and its code from memory, and Problem and Args are kilobytes.
struct ListTiles {
  QueryTile first;            // of the first sequence and head, without its list
  Blocks blocks;
  const int32_t* begin;       // Role::block_begin, and its strides
  int64_t begin_batch, begin_head;
  Divisor tiles_of_head, heads, heads_per_key;
  int count, tile_q, tile_k;  // count: tiles in all

  // The same bytes as query_tile() for this sequence, head and number.
  ATTUNE_HD QueryTile tile(int n) const {
    const int global_head = int(tiles_of_head.divide(n)), row = int(tiles_of_head.rest(n)) * tile_q;
    const int b = int(heads.divide(global_head)), head = int(heads.rest(global_head));
    QueryTile t = first;
    t.row += row, t.query = row, t.head = head, t.k_head = int(heads_per_key.divide(head));
    t.batch = t.sequence = t.k_batch = b;
    if (t.from > -kUnboundedTile) t.from += row;
    if (t.until < kUnboundedTile) t.until += row;
    t.stand += row;
    const BlockList list{blocks, begin + b * begin_batch + head * begin_head, nullptr};
    set_list(t, list, t.end - row < tile_q ? t.end - row : tile_q, tile_q, tile_k);
    return t;
  }
};

// Requires block lists, linear keys, and no length or position in a tensor.
inline ListTiles list_tiles(const Problem& p, const Args& a, int tile_q, int tile_k) {
  const Sequence s = sequence(p, a, 0);
  Problem whole = p;
  whole.mask.blocks = {};
  const Tensor& begin = a[Role::block_begin];
  const int tiles = query_tiles(s, tile_q);
  return {.first = query_tile(whole, a, 0, s, 0, 0, tile_q, tile_k),
          .blocks = p.mask.blocks,
          .begin = static_cast<const int32_t*>(begin.data),
          .begin_batch = begin.stride.batch,
          .begin_head = begin.stride.head,
          .tiles_of_head = Divisor(uint32_t(tiles > 0 ? tiles : 1)),
          .heads = Divisor(uint32_t(p.heads_q)),
          .heads_per_key = Divisor(uint32_t(p.heads_q / p.heads_kv)),
          .count = p.batch * p.heads_q * tiles,
          .tile_q = tile_q,
          .tile_k = tile_k};
}

}  // namespace attune
