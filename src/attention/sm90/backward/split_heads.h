// Into how many parts sm90_backward divides the query heads that share a head of keys, each with blocks of its own.
// Where blocks are few, those of whole groups leave multiprocessors idle: with a diagonal the longest takes twice the
// mean. Host code without CUDA, and pure.
#pragma once
#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "attention/tile/key_tile.h"
#include "attention/sm90/schedule.h"

namespace attune::sm90 {

constexpr bool kDividesHeads = true;    // false: a block has all heads that share its keys, always
constexpr int kMostBlocks = 4;          // of parts, a multiprocessor: bounds the memory that their sums take
constexpr double kWorthParts = 0.9;     // of the time without them, or less,
constexpr double kWorthSteps = 4;       // and so much less at least;
constexpr double kWorthMore = 0.95;     // more parts: of the time with fewer, or less

// Reckoned and not measured, in steps of a query tile and a key tile (about 2.3 us): what a block takes beside them,
// what it takes more to leave its sums, the kernel behind, and what that reads of each block.
constexpr double kBlockSteps = 2, kPartSteps = 1, kJoinSteps = 2, kReadSteps = 1. / 64;

struct KeyBlocks {
  KeyTile sequence{};             // as every sequence is
  int tile_q = 64, tile_k = 128;
  int64_t units = 1;              // heads of keys, of all sequences
  int group = 1;                  // query heads of each
  double bytes = 0;               // that a query head reads and adds to
  KeyOrder order{};
};

// In steps: blocks begin one after the other, each where one has ended first.
inline double time_of(const KeyBlocks& b, int parts, int multiprocessors) {
  const int tiles = int(ceil_div(b.sequence.keys, b.tile_k)), units = int(b.units) * parts, heads = b.group / parts;
  const int section = section_of(b.order, b.bytes * heads, tiles, units, multiprocessors);
  const double more = kBlockSteps + (parts > 1 ? kPartSteps : 0);
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int n = 0; n < multiprocessors; ++n) free.push(0);
  double last = 0;
  for (int first = 0; first < units; first += section)
    for (int n = 0; n < tiles; ++n) {
      KeyTile t = b.sequence;
      cut_key_tile(t, b.order.in_order ? tiles - 1 - n : n, b.tile_q, b.tile_k, b.tile_q);
      for (int unit = first; unit < std::min(first + section, units); ++unit) {
        const double end = free.top() + double(t.tiles) * heads + more;
        free.pop(), free.push(end);
        last = std::max(last, end);
      }
    }
  return parts == 1 ? last : last + kJoinSteps + kReadSteps * units * tiles;
}

inline int parts_of(const KeyBlocks& b, int multiprocessors) {
  const int64_t blocks = ceil_div(b.sequence.keys, b.tile_k) * b.units, most = kMostBlocks * int64_t(multiprocessors);
  if (!kDividesHeads || blocks == 0 || 2 * blocks > most) return 1;
  int best = 1;
  const double whole = time_of(b, 1, multiprocessors);
  double least = std::min(whole * kWorthParts, whole - kWorthSteps);
  for (int parts = 2; parts <= b.group && blocks * parts <= most; ++parts) {
    if (b.group % parts) continue;
    if (const double time = time_of(b, parts, multiprocessors); time < least) best = parts, least = kWorthMore * time;
  }
  return best;
}

// With a diagonal, blocks of later keys come to their next head of queries earlier, so soon all heads of a group are
// under way. Where what they read and add to is more than the L2 cache holds: as many parts as may be; at
// most one for two heads, so that sums of parts take no more memory than those of dQ, and each with so many rows that a
// key sees, in the mean, that leaving them costs little. Not where the blocks are few. On an H200 1.45 for each
// multiprocessor won, and 0.97 lost (docs/notes/sm90.md).
constexpr double kUnderWay = 40 << 20;
constexpr double kRowsOfPart = 2000, kBlocksOfParts = 1.4;
inline int parts_in_cache(const KeyBlocks& b, double rows_of_key, int multiprocessors) {
  const int64_t tiles = ceil_div(b.sequence.keys, b.tile_k);
  if (b.bytes * b.group * multiprocessors <= kUnderWay * double(tiles)) return 1;
  int most = 1;
  for (int parts = 2; 2 * parts <= b.group; ++parts)
    if (b.group % parts == 0 && rows_of_key * (b.group / parts) >= kRowsOfPart) most = parts;
  return double(tiles * b.units * most) >= kBlocksOfParts * multiprocessors ? most : 1;
}

}  // namespace attune::sm90
