// SPDX-License-Identifier: Apache-2.0
// Scheduling constants and formulas for the host sides of the Hopper kernels. They determine how many heads form a
// section that stays in L2, when the backward runs persistent CTAs, and how many query splits a key tile has. Host code
// without CUDA.
#pragma once
#include <algorithm>
#include <cstdint>

namespace attune::sm90 {

constexpr int kMaxLen = 1 << 28;  // an unbounded side of a band; also the longest sequence
inline int clamp_len(int64_t x) { return int(std::clamp<int64_t>(x, -kMaxLen, kMaxLen)); }

// KV heads per section. The tiles of a section are taken together, longest first. A section has as many heads as keep
// in L2 what they read and write, `bytes` per head.
constexpr double kSectionBytes = 32 << 20;
inline int section_heads(double bytes, double most_bytes = kSectionBytes) {
  constexpr int kMost = 64;
  int heads = 1;
  while (heads < kMost && 2 * heads * bytes <= most_bytes) heads *= 2;
  return heads;
}
// The same for the nondeterministic backward: half of kSectionBytes. On an H200 that is 1 to 2 % faster at 2048 and
// 4096 queries and equal elsewhere (docs/notes/sm90.md). With a band, key tiles differ in length, and the longest of a
// section come first. In a deterministic order each key tile waits for the one before it in its head. Tiles of equal
// length go head after head.
constexpr double kSectionOfBackward = 16 << 20;
constexpr int kSectionDeterministic = 16;  // most heads in a deterministic order: the tiles of a head start together
// Section size for `heads_total` heads of `tiles` key tiles each. If a section has fewer tiles than there are SMs,
// several sections run at once and share L2 anyway, and the longest tile of the last section starts late. So if there
// are few tiles in all, all heads form one section, and the shortest tiles come last. The limit is lower if L2 holds a
// section of nearly one tile per SM: on an H200, 2.9 tiles per SM gained 8 to 15 % as one section, 5.8 lost 2 to 5.
constexpr double kMinTiles = 8, kMinTilesHeld = 3.5, kNearly = 0.9;
inline int joined_section(double bytes, int64_t tiles, int heads_total, int sms) {
  const int heads = section_heads(bytes, kSectionOfBackward);
  const double filled = double(heads * tiles) / sms, all = double(tiles * heads_total) / sms;
  const bool held = heads * bytes <= kSectionOfBackward && filled >= kNearly;
  return filled < 1 && all <= (held ? kMinTilesHeld : kMinTiles) ? std::max(heads_total, heads) : heads;
}
struct KeyOrder { bool alike, deterministic; };
inline int section_of(KeyOrder by, double bytes, int64_t tiles, int heads_total, int sms) {
  if (by.alike && !by.deterministic) return 1;
  if (by.deterministic) return std::min(kSectionDeterministic, section_heads(bytes));
  return joined_section(bytes, tiles, heads_total, sms);
}
// Section size for head splits of a GQA group, run by persistent CTAs: as many heads as run at once or as L2 holds,
// whichever is more.
inline int section_of_head_splits(double bytes, int64_t tiles, int sms) {
  return std::max(section_heads(bytes, kSectionOfBackward), int(sms / std::max<int64_t>(tiles, 1)));
}
// Persistent backward: CTAs stay resident and take key tiles from a counter. That saves most of a tile's prologue and
// epilogue and costs a little in every step. So the limit is the mean number of rows that see a key, summed over the
// GQA group. On an H200, 2048 rows gained and 4096 did not. With steps of 80 queries, or where idle warps prepare
// ahead, 8192 gained and 16384 broke even. In a deterministic order 512 gained and 1024 did not (docs/notes/sm90.md),
// except at d64, where only persistent CTAs add from registers.
constexpr double kPersistentRows = 3072, kPersistentRowsLonger = 24576, kPersistentRowsDeterministic = 768;
struct KeyWalk {
  double rows = 0;
  int64_t tiles = 0;  // key tiles of all heads
  bool transposed = false, prepares = false, deterministic = false, query_splits = false;
  bool narrow = false;  // d64
};
inline bool may_persist(KeyWalk w, int sms) {
  const bool longer = w.deterministic ? w.narrow : w.transposed || w.prepares;
  const double most = longer ? kPersistentRowsLonger : w.deterministic ? kPersistentRowsDeterministic : kPersistentRows;
  return w.tiles > sms ? w.rows <= most : w.query_splits;
}
// Tiles come in waves, and the last wave is partly empty. With a diagonal the first tiles are long, and others wait for
// them. Such tiles are divided into query splits, whose numbers of query tiles differ by at most one. The
// number of splits is estimated in steps, from times on an H200 (docs/notes/sm90.md).
struct KeySteps {
  int64_t tiles, heads_total;  // key tiles per head; heads
  int group;                   // steps of a key tile per query tile
  bool narrow;                 // d64: sums are half as wide, and a kernel with splits takes 3 % more per step
};
// In steps: overhead of a tile; adding up a split's sums and storing them.
constexpr double kStepsOfTile = 2, kStepsOfAdding = 0.6, kStepsOfLeaving = 0.03;
constexpr double kStepsSaved = 0.75;
constexpr double kFractionSaved = 1. / 128, kFractionSavedNarrow = 1. / 24, kFractionSavedByLength = 1. / 8;
constexpr int kMostQuerySplits = 16, kSplitsPerCta = 2;  // per tile; mean per CTA, which bounds their memory
inline double steps_of_sums(const KeySteps& w, int splits, int64_t divided) {
  return splits * (kStepsOfAdding + double(divided) * (w.narrow ? kStepsOfLeaving / 2 : kStepsOfLeaving));
}

// Tiles with equally many query tiles: those after the last full wave are divided.
inline int64_t behind_waves(const KeySteps& w, int sms) { return w.tiles * w.heads_total % sms; }
inline int query_splits_alike(const KeySteps& w, int query_tiles, int sms) {
  const auto waves = [=](int64_t works) { return double((works + sms - 1) / sms); };
  const auto steps = [=](int n) { return double((query_tiles + n - 1) / n * w.group) + kStepsOfTile; };
  const int64_t rest = behind_waves(w, sms), most = kSplitsPerCta * int64_t(sms);
  const double all = waves(w.tiles * w.heads_total) * steps(1);
  const double fraction = w.narrow ? kFractionSavedNarrow : kFractionSaved;
  double least = steps(1) - std::max(kStepsSaved, all * fraction);
  int best = 1;
  for (int n = 2; rest > 0 && n <= std::min(kMostQuerySplits, query_tiles) && rest * n <= most; ++n) {
    const double time = waves(rest * n) * steps(n) + steps_of_sums(w, n, rest);
    if (time < least) least = time, best = n;
  }
  return best;
}

// Tile n of a head has query_tiles(n) query tiles, no more than tile n - 1, and all heads form one section. Tiles
// longer than a split of the first one are divided.
template <class QueryTiles>
int64_t tiles_to_divide(const KeySteps& w, QueryTiles query_tiles, int splits) {
  const int least = std::max((query_tiles(0) + splits - 1) / splits + 1, splits);
  int64_t n = 0;
  while (n < w.tiles && query_tiles(n) >= least) ++n;
  return n * w.heads_total;
}
template <class QueryTiles>
int query_splits_by_length(const KeySteps& w, QueryTiles query_tiles, int sms) {
  const int first = query_tiles(0);
  double all = 0;
  for (int64_t n = 0; n < w.tiles; ++n) all += query_tiles(n) * w.group + kStepsOfTile;
  const auto time = [&](double longest, double more) {
    return std::max(longest * w.group + kStepsOfTile, (all * double(w.heads_total) + more) / sms);
  };
  const double whole = time(first, 0);
  double least = whole - std::max(kStepsSaved, whole * kFractionSavedByLength);
  int best = 1;
  for (int n = 2; n <= std::min(kMostQuerySplits, first); ++n) {
    const int64_t divided = tiles_to_divide(w, query_tiles, n), next = divided / w.heads_total;
    if (divided * n > kSplitsPerCta * int64_t(sms)) break;
    const int longest = std::max((first + n - 1) / n, next < w.tiles ? query_tiles(next) : 0);
    const double with_splits = time(longest, kStepsOfTile * double(divided * (n - 1))) + steps_of_sums(w, n, divided);
    if (with_splits < least) least = with_splits, best = n;
  }
  return best;
}
// Idle warps of persistent CTAs may prepare later heads, which takes time: where few rows see a key, tiles would wait
// for it. On an H200, 512 rows lost or broke even and 1024 gained; GQA groups did not gain.
constexpr double kRowsOfPreparing = 768;
// Heads that are prepared before the launch, for heads of `tiles` key tiles in sections of `section`. These are the
// heads of each CTA's first tile, which does not wait for preparation, and about as many again, to cover the start of
// the others.
inline int64_t heads_before(int section, int64_t tiles, int sms) {
  return std::max<int64_t>(2 * section, 2 * sms / std::max<int64_t>(tiles, 1) + 2);
}

}  // namespace attune::sm90
