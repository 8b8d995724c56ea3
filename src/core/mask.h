// SPDX-License-Identifier: Apache-2.0
// Which keys a query may see. A Mask is the request, the same for every sequence. A Band is its meaning for one
// sequence, built in the kernel from that sequence's lengths. Full, causal, sliding-window and compressed attention are
// settings of one band; block-sparse attention is a band restricted to a block list.
#pragma once
#include "core/tensor.h"

namespace attune {

enum class MaskKind : int32_t { full, causal, window };
// Position of query 0: the last query at the last key; at key 0; or taken from Role::positions.
enum class Align : int32_t { bottom_right, top_left, absolute };

inline constexpr int32_t kNoLimit = INT32_MAX;       // an unlimited window side
struct Blocks { int32_t q = 0, k = 0, bound = 0; };  // block sizes and maximum number of entries; 0: no list

struct Mask {
  MaskKind kind = MaskKind::full;
  Align align = Align::bottom_right;
  int32_t left = 0, right = 0;      // window sides, both inclusive; 0 for other kinds
  int32_t k_step = 1, k_phase = 0;  // key j has position j * k_step + k_phase (compressed keys)
  Blocks blocks{};
};

// Positions are 64-bit. Lengths are below 2^31, k_step is at most 2^20 and given positions are at most 2^40, all
// checked at the API boundary. So |ahead| < 2^53, and a distance plus kUnbounded cannot overflow.
inline constexpr int64_t kUnbounded = int64_t(1) << 60;
inline constexpr int32_t kMaxStep = 1 << 20;
inline constexpr int64_t kMaxPosition = int64_t(1) << 40;

struct Band {
  int64_t left = kUnbounded, right = kUnbounded;  // how far back and ahead a query sees
  int64_t q_first = 0;                            // query i has position i + q_first
  int64_t k_first = 0, k_step = 1;                // key j has position j * k_step + k_first

  ATTUNE_HD constexpr int64_t q_position(int64_t i) const { return i + q_first; }
  ATTUNE_HD constexpr int64_t k_position(int64_t j) const { return j * k_step + k_first; }
  ATTUNE_HD constexpr int64_t ahead(int64_t i, int64_t j) const { return k_position(j) - q_position(i); }
  // The definition of visibility. The walks below compute the same faster.
  ATTUNE_HD constexpr bool visible(int64_t i, int64_t j) const {
    return -left <= ahead(i, j) && ahead(i, j) <= right;
  }
};

// `q_at` and `k_at` are the given positions of query 0 and key 0; used only by absolute masks.
ATTUNE_HD constexpr Band band_of(const Mask& m, int len_q, int len_k, int64_t q_at, int64_t k_at) {
  Band b{.k_first = m.k_phase, .k_step = m.k_step};
  if (m.align == Align::absolute) b.q_first = q_at, b.k_first += k_at;
  if (m.align == Align::bottom_right) b.q_first = b.k_position(len_k - 1) - (len_q - 1);
  if (m.kind == MaskKind::causal) b.right = 0;
  if (m.kind == MaskKind::window) {
    if (m.left != kNoLimit) b.left = m.left;
    if (m.right != kNoLimit) b.right = m.right;
  }
  return b;
}

// Skips the division by 1: it is the common step, and 64-bit division is slow on a GPU.
ATTUNE_HD constexpr int64_t floor_div(int64_t a, int64_t b) { return b == 1 ? a : a >= 0 ? a / b : -((b - 1 - a) / b); }
ATTUNE_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
ATTUNE_HD constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
ATTUNE_HD constexpr int clamp(int64_t x, int64_t lo, int64_t hi) { return int(x < lo ? lo : (x > hi ? hi : x)); }

// Bounds a position that was not checked, so that no sum of positions overflows.
ATTUNE_HD constexpr int64_t clamp_position(int64_t x) {
  return x < -kMaxPosition ? -kMaxPosition : (x > kMaxPosition ? kMaxPosition : x);
}

struct Rows { int first, last; };                // half-open
struct Tile { int first, last; bool partial; };  // partial: some pair inside is masked

// The key tiles that a tile of query rows visits, in order. Kernels use walks and never inspect the mask itself.
struct BandWalk {
  Band band;
  int len_k, tile_k;

  // The keys that query i sees: half-open, empty if first_key >= last_key. Both ends increase with i.
  ATTUNE_HD constexpr int first_key(int64_t i) const {
    return clamp(ceil_div(band.q_position(i) - band.left - band.k_first, band.k_step), 0, len_k);
  }
  ATTUNE_HD constexpr int last_key(int64_t i) const {
    return clamp(floor_div(band.q_position(i) + band.right - band.k_first, band.k_step) + 1, 0, len_k);
  }
  ATTUNE_HD constexpr int tiles(Rows r) const {
    const int lo = first_key(r.first) / tile_k, hi = int(ceil_div(last_key(r.last - 1), tile_k));
    return hi > lo ? hi - lo : 0;
  }
  ATTUNE_HD constexpr Tile tile(Rows r, int n) const {
    const int64_t first = (int64_t(first_key(r.first)) / tile_k + n) * tile_k;
    return cut(r, first, first + tile_k);
  }
  // A tile is complete if and only if the first and last rows see all of it.
  ATTUNE_HD constexpr Tile cut(Rows r, int64_t first, int64_t end) const {
    const int last = clamp(end, 0, len_k);
    return {clamp(first, 0, last), last, !(first_key(r.last - 1) <= first && last <= last_key(r.first))};
  }
};

// The transposed walk, for a backward: the query tiles that see a key tile.
struct QueryWalk {
  Band band;
  int len_q, tile_q;

  // The queries that see key j. Both ends increase with j.
  ATTUNE_HD constexpr int first_query(int64_t j) const {
    return clamp(band.k_position(j) - band.right - band.q_first, 0, len_q);
  }
  ATTUNE_HD constexpr int last_query(int64_t j) const {
    return clamp(band.k_position(j) + band.left - band.q_first + 1, 0, len_q);
  }
  ATTUNE_HD constexpr int tiles(Rows keys) const {
    const int lo = first_query(keys.first) / tile_q, hi = int(ceil_div(last_query(keys.last - 1), tile_q));
    return hi > lo ? hi - lo : 0;
  }
  ATTUNE_HD constexpr Tile tile(Rows keys, int n) const {
    const int64_t first = (int64_t(first_query(keys.first)) / tile_q + n) * tile_q;
    return cut(keys, first, first + tile_q);
  }
  ATTUNE_HD constexpr Tile cut(Rows keys, int64_t first, int64_t end) const {
    const int last = clamp(end, 0, len_q);
    return {clamp(first, 0, last), last, !(first_query(keys.last - 1) <= first && last <= last_query(keys.first))};
  }
};

// The block list of one (batch, head): the key blocks of each query block, as CSR. A kernel's tiles are blocks or parts
// of blocks; visibility inside a block is still decided by the band.
struct BlockList {
  Blocks blocks;
  const int32_t* begin;   // [query blocks + 1] into column
  const int32_t* column;  // key blocks, each at most once per row

  // Never reads entries outside the list, whatever `begin` holds: values on a GPU are not checked beforehand.
  ATTUNE_HD int entry(int row) const { return clamp(begin[row], 0, blocks.bound); }
  ATTUNE_HD int count(int row) const {
    const int n = entry(row + 1) - entry(row);
    return n > 0 ? n : 0;
  }
  ATTUNE_HD int key_block(int row, int n) const { return column[entry(row) + n]; }
  // Index into `column` of a row's key block; -1 if absent.
  ATTUNE_HD int find(int row, int wanted) const {
    const int first = entry(row), n = count(row);
    for (int e = first; e < first + n; ++e)
      if (column[e] == wanted) return e;
    return -1;
  }
};

// The tiles of one row of the block list. The rows must lie in one query block.
struct BlockWalk {
  BandWalk inside;
  BlockList list;

  ATTUNE_HD int tiles(Rows r) const { return list.count(r.first / list.blocks.q); }
  ATTUNE_HD Tile tile(Rows r, int n) const {
    const int64_t first = int64_t(list.key_block(r.first / list.blocks.q, n)) * list.blocks.k;
    return inside.cut(r, first, first + list.blocks.k);
  }
};

}  // namespace attune
