// Numbers that hosts of Hopper kernels share.
#pragma once
#include <algorithm>
#include <cstdint>

namespace attune::sm90 {

constexpr int kFar = 1 << 28;  // a side without end; also the longest sequence
inline int far(int64_t x) { return int(std::clamp<int64_t>(x, -kFar, kFar)); }

// Of heads of keys whose tiles are taken together, the longest first: so many that what they read and write, `bytes` a
// head, stays in the second-level cache.
inline int section_heads(double bytes) {
  constexpr double kSectionBytes = 32 << 20;
  constexpr int kMost = 64;
  int heads = 1;
  while (heads < kMost && 2 * heads * bytes <= kSectionBytes) heads *= 2;
  return heads;
}
// Of `units` heads with `tiles` each. Where a section has fewer tiles than there are multiprocessors, several are under
// way and share the cache all the same, and the longest tile of the last begins late: where tiles are few, all heads
// are one section then, and the shortest tiles of all come last.
inline int joined_section(int heads, int64_t tiles, int units, int multiprocessors) {
  constexpr int kFew = 8;  // tiles a multiprocessor
  return heads * tiles < multiprocessors && tiles * units <= int64_t(kFew) * multiprocessors ? std::max(units, heads)
                                                                                            : heads;
}
// Of a backward, whose heads of keys have `bytes` each. With a band, blocks differ in length: the longest of a section
// come first. In a fixed order each waits for the one before it in its head. Blocks that are alike go head after head.
constexpr int kSectionInOrder = 16;  // heads at most, in a fixed order: blocks of a head begin together
struct KeyOrder { bool alike, in_order; };
inline int section_of(KeyOrder by, double bytes, int64_t tiles, int units, int multiprocessors) {
  if (by.alike && !by.in_order) return 1;
  const int heads = section_heads(bytes);
  return by.in_order ? std::min(kSectionInOrder, heads) : joined_section(heads, tiles, units, multiprocessors);
}
// Of a backward: blocks stay and take tiles of keys from a counter. That saves most of a tile's beginning and end, and
// costs a little in every step, so it counts how many rows see a key: in the mean, of all heads that share it. On an
// H200 2048 rows won and 4096 did not; with steps of 80 queries, or where idle warps prepare, 8192 won, and 16384 were
// as quick either way; in a fixed order 512 won and 1024 did not (docs/sm90.md).
constexpr double kRowsOfStaying = 3072, kRowsOfStayingLonger = 24576, kRowsOfStayingInOrder = 768;
struct KeyWalk {
  double rows = 0;
  int64_t tiles = 0;  // of keys, of all heads
  bool turned = false, prepares = false, in_order = false, pieced = false;
};
inline bool may_stay(KeyWalk w, int multiprocessors) {
  const double most = w.in_order                ? kRowsOfStayingInOrder
                      : w.turned || w.prepares ? kRowsOfStayingLonger
                                               : kRowsOfStaying;
  return w.tiles > multiprocessors ? w.rows <= most : w.pieced;
}
// Tiles that are alike come in waves, and those of the last are divided into pieces, so that all blocks have some: all
// tiles, where they are fewer than multiprocessors. A piece has as many of a tile's query tiles as the others, or one
// more. In steps, by times of an H200: what a piece takes beside its own, what it takes to add its sums up, and what
// must be saved; that as a part of all too.
constexpr double kStepsOfPiece = 2, kStepsOfSums = 0.75, kStepsSaved = 1, kPartSaved = 1. / 128;
constexpr int kMostPieces = 16, kPiecesOfBlock = 2;  // of a tile; of a block, in the mean: bounds the memory they take
struct Pieced { int64_t whole; int pieces; };        // tiles that are not, and into how many the others are
inline Pieced pieced(int64_t tiles, int query_tiles, int group, int multiprocessors) {
  const int64_t rest = tiles % multiprocessors;
  const double steps = double(query_tiles) * group;
  Pieced best{tiles, 1};
  const auto waves = [=](int64_t works) { return double((works + multiprocessors - 1) / multiprocessors); };
  double least = steps - std::max(kStepsSaved, waves(tiles) * steps * kPartSaved);
  const int64_t most = kPiecesOfBlock * int64_t(multiprocessors);
  for (int n = 2; n <= std::min(kMostPieces, query_tiles) && rest * n <= most; ++n) {
    const double time = waves(rest * n) * (steps / n + kStepsOfPiece) + kStepsOfSums * n;
    if (rest > 0 && time < least) least = time, best = {tiles - rest, n};
  }
  return best;
}
// Where blocks stay, their idle warps may prepare heads to come, which takes them some time: where few rows see a key,
// tiles would wait for that. On an H200 512 rows lost or won nothing and 1024 won; heads that share keys did not.
constexpr double kRowsOfPreparing = 768;
// Heads that are prepared before, of heads of `tiles` in such sections: those of the first tile of each block, which
// nobody waits for, and about as many, while the others are begun.
inline int64_t heads_before(int section, int64_t tiles, int multiprocessors) {
  return std::max<int64_t>(2 * section, 2 * multiprocessors / std::max<int64_t>(tiles, 1) + 2);
}

}  // namespace attune::sm90
