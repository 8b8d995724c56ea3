// SPDX-License-Identifier: Apache-2.0
// Head splits: how many sm90_backward divides the query heads of a GQA group into, each with CTAs of its own. If
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
constexpr double kWorthSplits = 0.9;    // splits: at most this fraction of the time without them,
constexpr double kWorthSteps = 4;       // and at least this many steps less
constexpr double kWorthMore = 0.95;     // more splits: at most this fraction of the time with fewer

// Estimated, not measured, in steps of a query tile and a key tile (about 2.3 us): the overhead of a CTA, the extra
// time to store its sums, the combine kernel, and its reads per CTA.
constexpr double kBlockSteps = 2, kSplitSteps = 1, kCombineSteps = 2, kReadSteps = 1. / 64;

struct KeyBlocks {
  KeyTile sequence{};  // the same for every sequence
  int tile_q = 64, tile_k = 128;
  int64_t heads_total = 1;  // KV heads of all sequences
  int group = 1;            // query heads of each
  double bytes = 0;         // that a query head reads and adds to
  KeyOrder order{};
};

// In steps: CTAs start in order, each on the SM that is free first.
inline double time_of(const KeyBlocks& b, int splits, int sms) {
  const int tiles = int(ceil_div(b.sequence.keys, b.tile_k));
  const int heads_total = int(b.heads_total) * splits, heads = b.group / splits;
  const int section = section_of(b.order, b.bytes * heads, tiles, heads_total, sms);
  const double more = kBlockSteps + (splits > 1 ? kSplitSteps : 0);
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int n = 0; n < sms; ++n) free.push(0);
  double last = 0;
  for (int first = 0; first < heads_total; first += section)
    for (int n = 0; n < tiles; ++n) {
      KeyTile t = b.sequence;
      cut_key_tile(t, b.order.deterministic ? tiles - 1 - n : n, b.tile_q, b.tile_k, b.tile_q);
      for (int head = first; head < std::min(first + section, heads_total); ++head) {
        const double end = free.top() + double(t.tiles) * heads + more;
        free.pop(), free.push(end);
        last = std::max(last, end);
      }
    }
  return splits == 1 ? last : last + kCombineSteps + kReadSteps * heads_total * tiles;
}

inline int head_splits_of(const KeyBlocks& b, int sms) {
  const int64_t blocks = ceil_div(b.sequence.keys, b.tile_k) * b.heads_total, most = kMostBlocks * int64_t(sms);
  if (!kDividesHeads || blocks == 0 || 2 * blocks > most) return 1;
  int best = 1;
  const double whole = time_of(b, 1, sms);
  double least = std::min(whole * kWorthSplits, whole - kWorthSteps);
  for (int splits = 2; splits <= b.group && blocks * splits <= most; ++splits) {
    if (b.group % splits) continue;
    if (const double time = time_of(b, splits, sms); time < least) best = splits, least = kWorthMore * time;
  }
  return best;
}

// With a diagonal, CTAs of later keys reach their next query head earlier, so soon all heads of a group are in flight.
// If what they read and add to exceeds L2, use as many splits as allowed. There is at most one per two heads, so that
// their sums take no more memory than those of dQ. Each must have enough rows per key, on average, that storing the
// sums costs little. Not with few CTAs: on an H200 1.45 per SM gained, and 0.97 lost (docs/notes/sm90.md).
constexpr double kUnderWay = 40 << 20;
constexpr double kRowsOfSplit = 2000, kBlocksOfSplits = 1.4;
inline int head_splits_in_cache(const KeyBlocks& b, double rows_of_key, int sms) {
  const int64_t tiles = ceil_div(b.sequence.keys, b.tile_k);
  if (b.bytes * b.group * sms <= kUnderWay * double(tiles)) return 1;
  int most = 1;
  for (int splits = 2; 2 * splits <= b.group; ++splits)
    if (b.group % splits == 0 && rows_of_key * (b.group / splits) >= kRowsOfSplit) most = splits;
  return double(tiles * b.heads_total * most) >= kBlocksOfSplits * sms ? most : 1;
}

}  // namespace attune::sm90
