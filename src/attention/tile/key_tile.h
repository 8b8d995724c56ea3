// One tile of keys, as a block of a backward that owns it is told of it: which keys, and which query tiles see one of
// them. Here is how it follows from a sequence; kernels walk the query tiles of every head that shares the keys.
#pragma once
#include "core/args.h"

namespace attune {

struct alignas(16) KeyTile {
  int key, head;               // its first, and its head of keys
  int batch;                   // its sequence, as the problem counts them
  int rows, keys;              // of the sequence
  int low, high;               // key j is seen by query i where i + low <= j <= i + high
  int q_row, q_batch;          // where query 0 of the sequence lies
  int k_row, k_batch;          // and key 0
  int tiles;                   // of queries, in each head
  int start, stop;             // the first query of the first of them, and past the last
  int number;                  // among the key tiles of its sequence
  int stand;                   // how far ahead of query 0 key 0 stands, where positions are not given
};

// Longer than any sequence, and a sum of two is an int.
inline constexpr int64_t kUnboundedKey = 1 << 29;

// What all key tiles of a sequence have in common.
ATTUNE_HD inline KeyTile key_tile_of(const Sequence& s, int b) {
  const int64_t stand = s.band.q_first - s.band.k_first;
  return {.key = 0,
          .head = 0,
          .batch = b,
          .rows = s.len_q,
          .keys = s.len_k,
          .low = clamp(stand - s.band.left, -kUnboundedKey, kUnboundedKey),
          .high = clamp(stand + s.band.right, -kUnboundedKey, kUnboundedKey),
          .q_row = s.q_first,
          .q_batch = s.q_batch,
          .k_row = s.k_first,
          .k_batch = s.k_batch,
          .tiles = 0,
          .start = 0,
          .stop = 0,
          .number = 0,
          .stand = clamp(-stand, -kUnboundedKey, kUnboundedKey)};
}

// The n-th of the sequence. Query tiles begin at multiples of `grain`.
ATTUNE_HD inline void cut_key_tile(KeyTile& t, int n, int tile_q, int tile_k, int grain) {
  t.number = n, t.key = n * tile_k;
  const int end = t.key + tile_k < t.keys ? t.key + tile_k : t.keys;
  const int from = t.key - t.high > 0 ? t.key - t.high : 0;
  const int last = (end - t.low < t.rows ? end - t.low : t.rows) - 1;
  t.tiles = 0;
  if (t.key >= t.keys || last < from || t.low > t.high) return;
  t.start = from / grain * grain, t.tiles = (last - t.start) / tile_q + 1;
  t.stop = t.start + t.tiles * tile_q;
}

// How many key tiles of the sequence behind this one have a query tile, which this one has too.
ATTUNE_HD inline int key_tiles_behind(const KeyTile& t, int query, int tile_q, int tile_k) {
  const int row = (query + tile_q < t.rows ? query + tile_q : t.rows) - 1;
  const int last = row + t.high < t.keys - 1 ? row + t.high : t.keys - 1;
  return last / tile_k - t.number;
}

// There are none: in a fixed order this one is the first to add to the query tile. Fewer registers than their number.
ATTUNE_HD inline bool is_first_to_add(const KeyTile& t, int query, int tile_q, int tile_k) {
  const int row = (query + tile_q < t.rows ? query + tile_q : t.rows) - 1, end = t.key + tile_k;
  return end >= t.keys || row + t.high < end;
}

// Of its query tiles one of so many equal shares. There are as many query tiles at least; pieces are few.
ATTUNE_HD inline void cut_piece(KeyTile& t, int piece, int pieces, int tile_q) {
  const int from = t.tiles * piece / pieces, to = t.tiles * (piece + 1) / pieces;
  t.start += from * tile_q, t.tiles = to - from, t.stop = t.start + t.tiles * tile_q;
}

// Each query of the sequence sees a key: then so do the first and the last, and those between them.
ATTUNE_HD inline bool every_query_sees(const KeyTile& t) {
  return t.keys > 0 && t.low <= t.high && t.high >= 0 && t.rows - 1 + t.low < t.keys;
}

}  // namespace attune
