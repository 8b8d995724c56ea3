// Head splits: into how many parts sm90_backward divides the query heads of a GQA group, each with CTAs of its own. If
// there are few CTAs, those of whole groups leave SMs idle: with a diagonal the longest takes twice the mean. Pure host
// code without CUDA.
#pragma once
#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "attention/tile/key_tile.h"
#include "attention/sm90/schedule.h"

namespace attune::sm90 {

constexpr bool kDividesHeads = true;    // false: a CTA always has all heads of the GQA group
constexpr int kMostBlocks = 4;          // CTAs of splits per SM: bounds the memory of their sums
constexpr double kWorthParts = 0.9;     // splits: at most this fraction of the time without them,
constexpr double kWorthSteps = 4;       // and at least this many steps less
constexpr double kWorthMore = 0.95;     // more splits: at most this fraction of the time with fewer

// Estimated, not measured, in steps of a query tile and a key tile (about 2.3 us): the overhead of a CTA, the extra
// time to store its sums, the combine kernel, and its reads per CTA.
constexpr double kBlockSteps = 2, kPartSteps = 1, kJoinSteps = 2, kReadSteps = 1. / 64;

struct KeyBlocks {
  KeyTile sequence{};  // the same for every sequence
  int tile_q = 64, tile_k = 128;
  int64_t units = 1;   // KV heads of all sequences
  int group = 1;       // query heads of each
  double bytes = 0;    // that a query head reads and adds to
  KeyOrder order{};
};

// In steps: CTAs start in order, each on the SM that is free first.
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

// With a diagonal, CTAs of later keys reach their next query head earlier, so soon all heads of a group are in flight.
// If what they read and add to exceeds L2, use as many splits as allowed. There is at most one per two heads, so that
// their sums take no more memory than those of dQ. Each must have enough rows per key, on average, that storing the
// sums costs little. Not with few CTAs: on an H200 1.45 per SM gained, and 0.97 lost (docs/notes/sm90.md).
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
