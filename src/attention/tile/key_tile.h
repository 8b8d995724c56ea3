// SPDX-License-Identifier: Apache-2.0
// One key tile, as the CTA of a backward that owns it sees it: which keys it has, and which query tiles see one of
// them. This header derives it from a sequence. Kernels walk its query tiles for every query head of the GQA group.
#pragma once
#include "core/args.h"

namespace attune {

struct alignas(16) KeyTile {
  int key, head;       // first key; KV head
  int batch;           // index of the sequence in the problem
  int rows, keys;      // queries and keys of the sequence
  int low, high;       // query i sees key j if i + low <= j <= i + high
  int q_row, q_batch;  // location of query 0 of the sequence
  int k_row, k_batch;  // location of key 0
  int tiles;           // query tiles per head
  int start, stop;     // first query of the first query tile; one past the last
  int number;          // index among the key tiles of its sequence
  int stand;           // position of key 0 minus that of query 0, if positions are not given
};

// Longer than any sequence; the sum of two fits in an int.
inline constexpr int64_t kUnboundedKey = 1 << 29;

// The fields that all key tiles of a sequence share.
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

// Sets key tile n of the sequence. Query tiles start at multiples of `grain`.
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

// Number of later key tiles of the sequence that also see this query tile.
ATTUNE_HD inline int key_tiles_behind(const KeyTile& t, int query, int tile_q, int tile_k) {
  const int row = (query + tile_q < t.rows ? query + tile_q : t.rows) - 1;
  const int last = row + t.high < t.keys - 1 ? row + t.high : t.keys - 1;
  return last / tile_k - t.number;
}

// True if there are none: in a deterministic order this key tile is the first to add to the query tile. Takes fewer
// registers than the count.
ATTUNE_HD inline bool is_first_to_add(const KeyTile& t, int query, int tile_q, int tile_k) {
  const int row = (query + tile_q < t.rows ? query + tile_q : t.rows) - 1, end = t.key + tile_k;
  return end >= t.keys || row + t.high < end;
}

// Keeps one of `splits` nearly equal splits of the query tiles. Requires tiles >= splits; splits is small.
ATTUNE_HD inline void cut_query_split(KeyTile& t, int split, int splits, int tile_q) {
  const int from = t.tiles * split / splits, to = t.tiles * (split + 1) / splits;
  t.start += from * tile_q, t.tiles = to - from, t.stop = t.start + t.tiles * tile_q;
}

// True if every query of the sequence sees a key. It suffices that the first and the last do.
ATTUNE_HD inline bool every_query_sees(const KeyTile& t) {
  return t.keys > 0 && t.low <= t.high && t.high >= 0 && t.rows - 1 + t.low < t.keys;
}

}  // namespace attune
