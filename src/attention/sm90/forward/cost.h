// SPDX-License-Identifier: Apache-2.0
// Time models of the kernels of sm90_forward for problems with few queries, so that shape() can choose. They count
// tiles and steps, with costs fitted to times on an H200. Pure host code without CUDA.
#pragma once
#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "attention/tile/stream_k.h"
#include "core/mask.h"
#include "core/problem.h"

namespace attune::sm90 {

inline constexpr int kSplitKvRows = 64;   // rows per tile of split_kv.h; kernels of kernel.h have more
inline constexpr int kTimedTiles = 1024;  // tiles of 64 queries over all heads: kernels were timed up to here
inline constexpr int kColdSteps = 4;

// Microseconds per launch, extra per launch whose band has an edge, per query tile and per key step. `cold`: extra for
// each of the first steps of a CTA, whose instructions are not cached yet.
struct Cost {
  double start, edge, tile, step, cold;
};

// A kernel: the largest head dim it serves, its tile, the warpgroups that share the keys of a tile, CTAs per SM.
struct TimeModel {
  int dim, tile_q, tile_k, splits, blocks_per_sm;
  Cost cost;
  Cost crowded;  // if CTAs share an SM
};

// Fitted to 690 problems on an H200, 2026-11-15: 1 ... 512 heads in all, 64 ... 4096 queries, 128 ... 16384 keys, full
// and causal, bf16. Each kernel was timed alone in batches, with L2 flushed before each launch. Least squares of the
// relative error, which is 5 to 7 %; the first row's edge and the third's start were then set by the choices.
inline constexpr TimeModel kTimeModels[] = {
    {64, 128, 128, 1, 1, {4.54, 1.5, 2.10, 0.97, 0.28}, {}},
    {64, 192, 128, 1, 1, {4.57, 1.5, 2.75, 1.30, 0}, {}},
    {64, kSplitKvRows, 64, 4, 1, {3.95, 0, 2.65, 1.535, 0}, {}},
    {64, kSplitKvRows, 64, 2, 2, {3.52, 0, 2.14, 1.174, 0}, {3.52, 0, 3.56, 1.444, 0}},
    {96, 128, 128, 1, 1, {3.99, 0.26, 3.17, 1.331, 0.29}, {}},
    {96, kSplitKvRows, 64, 2, 1, {3.45, 0, 3.19, 1.342, 0}, {}},
    {128, 128, 128, 1, 1, {4.13, 0.29, 3.71, 1.375, 0.45}, {}},
    {128, kSplitKvRows, 64, 2, 1, {3.12, 0, 3.73, 1.358, 0}, {}},
};

// Packed GQA: number of heads of a GQA group whose few queries share a tile of sm90/forward/kernel.h. The rows per head
// are a power of two, at least 16, as many as a warp stores. A tile never mixes heads of different keys. Returns 1
// unless packing takes fewer waves.
inline int packed_heads(const Problem& p, int rows, int tile_q, int sms) {
  const int group = p.heads_q / p.heads_kv;
  int heads = tile_q == 128 ? group & -group : 1;  // the largest power of two that divides it
  while (heads > 1 && (tile_q / heads < 16 || tile_q / heads < rows)) heads /= 2;
  const int64_t tiles = int64_t(p.batch) * p.heads_q * ceil_div(rows, tile_q);
  return ceil_div(tiles / heads, sms) < ceil_div(tiles, sms) ? heads : 1;
}

// Simulates CTAs that take the longest remaining tile as soon as they are free.
inline double time_of(const Problem& p, const TimeModel& way, int sms) {
  const BandWalk walk{band_of(p.mask, p.len_q, p.len_k, 0, 0), p.len_k, way.tile_k};
  std::vector<int> steps;  // of the tiles of a head
  for (int row = 0; row < p.len_q; row += way.tile_q) {
    const int tiles = walk.tiles({row, std::min(row + way.tile_q, p.len_q)});
    steps.push_back(std::max(1, int(ceil_div(tiles, way.splits))));
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  const int heads = p.batch * p.heads_q / packed_heads(p, p.len_q, way.tile_q, sms);
  const int64_t tiles = int64_t(steps.size()) * heads;
  const Cost& cost = way.blocks_per_sm > 1 && tiles > sms ? way.crowded : way.cost;
  struct Block {
    double end;
    int steps;
    bool operator>(const Block& other) const { return end > other.end; }
  };
  std::vector<Block> idle(size_t(std::min<int64_t>(tiles, int64_t(sms) * way.blocks_per_sm)));
  std::priority_queue<Block, std::vector<Block>, std::greater<>> blocks(std::greater<>(), std::move(idle));
  Block last{};
  for (const int n : steps)
    for (int head = 0; head < heads; ++head) {
      const Block b{blocks.top().end + cost.tile + cost.step * n, blocks.top().steps + n};
      blocks.pop(), blocks.push(b);
      if (b > last) last = b;
    }
  const double start = cost.start + (p.mask.kind != MaskKind::full ? cost.edge : 0);
  return start + last.end + cost.cold * std::min(last.steps, kColdSteps);
}

// The kernels beside those with tiles of 128 queries that serve a problem.
struct Candidates {
  bool split_kv;  // sm90/forward/split_kv.h
  bool large;     // tiles of 192 queries; with an edge in the band they lose what they gain unless there are many keys
};

// The fastest kernel for a problem; null if none was timed.
inline const TimeModel* quickest(const Problem& p, int sms, Candidates candidates) {
  const int dim = std::max(p.dim_qk, p.dim_v);
  if (int64_t(p.batch) * p.heads_q * ceil_div(p.len_q, kSplitKvRows) > kTimedTiles) return nullptr;
  const TimeModel* best = nullptr;
  double least = 0;
  for (const TimeModel& way : kTimeModels) {
    if (way.dim < dim || (best && way.dim != best->dim)) continue;
    if (way.tile_q == kSplitKvRows && !candidates.split_kv) continue;
    if (way.tile_q == 192 && (!candidates.large || (p.mask.kind != MaskKind::full && p.len_k < 2048))) continue;
    const double time = time_of(p, way, sms);
    if (!best || time < least) best = &way, least = time;
  }
  return best;
}

// If there are fewer tiles of 128 queries than SMs, CTAs may share the keys of all tiles (tile/stream_k.h), in splits
// that another kernel combines.
struct StreamKCost {
  int dim;                          // head dim of the kernel
  double alone, alone_step;         // the same kernel with one CTA per tile
  double start, step, split, tile;  // per launch; per step of a CTA; per split of a tile; per tile
};
// Fitted likewise, to 110, 142 and 131 problems of 1 ... 100 tiles and 1024 ... 32768 keys, all with a full mask.
inline constexpr StreamKCost kStreamKCosts[] = {{64, 7.5, 0.96, 12.2, 1.07, 0.28, 0.02},
                                                {128, 10.3, 1.32, 11.4, 1.69, 0.52, 0.08},
                                                {256, 10.6, 1.16, 18.2, 1.51, 0.35, 0}};

// Key tiles of the query tile that sees the most, or one more.
inline int64_t most_steps(const Problem& p, int tile_q, int tile_k) {
  const BandWalk walk{band_of(p.mask, p.len_q, p.len_k, 0, 0), p.len_k, tile_k};
  const int64_t seen = std::min(walk.band.left, kMaxPosition) + std::min(walk.band.right, kMaxPosition) + tile_q;
  const int64_t all = walk.tiles({0, p.len_q}), some = seen > 0 ? 1 + ceil_div(seen - 1, tile_k) : 0;
  return std::max<int64_t>(1, std::min(all, some));
}

// A tile has at most as many splits as an eighth of its columns, or 16: more take longer to add than they save. With a
// band every tile is charged and divided like the one that sees the most.
inline StreamK stream_k_of_all(const Problem& p, int tile_q, int tile_k, int dim, int sms) {
  const int64_t steps = most_steps(p, tile_q, tile_k);
  const int64_t tiles = ceil_div(p.len_q, tile_q) * p.batch * p.heads_q;
  const int64_t share = std::max(ceil_div(tiles * steps, sms), ceil_div(steps, std::max(16, dim / 8)));
  return {int(tiles), int(share), int(steps)};
}

// Approximate time of the next backend for a problem that does not fill the GPU, by the pairs of tiles of 128 that it
// splits. Timed with 8 ... 64 tiles and 2048 ... 16384 keys, d64 and d128, where it takes 0.8 to 1.4 times that.
inline double next_link_time(const Problem& p, int dim) {
  const BandWalk walk{band_of(p.mask, p.len_q, p.len_k, 0, 0), p.len_k, 128};
  int64_t pairs = 0;
  for (int row = 0; row < p.len_q; row += 128) pairs += walk.tiles({row, std::min(row + 128, p.len_q)});
  return ceil_div(dim, 64) * (27 + 0.012 * double(pairs * p.batch * p.heads_q));
}

// True if stream-K is faster than `way`, or than one CTA per tile if none was timed.
inline bool stream_k_pays(const Problem& p, const StreamK& s, int dim, const TimeModel* way, int sms) {
  for (const StreamKCost& cost : kStreamKCosts)
    if (cost.dim == dim) {
      const double other = way ? time_of(p, *way, sms) : cost.alone + cost.alone_step * s.steps;
      return cost.start + cost.step * s.share + cost.split * double(ceil_div(s.steps, s.share)) + cost.tile * s.tiles <
             other;
    }
  return false;
}

}  // namespace attune::sm90
