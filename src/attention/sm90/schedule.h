// Numbers that hosts of Hopper kernels share.
#pragma once
#include <algorithm>
#include <cstdint>

namespace attune::sm90 {

constexpr int kMaxLen = 1 << 28;  // a side without end; also the longest sequence
inline int clamp_len(int64_t x) { return int(std::clamp<int64_t>(x, -kMaxLen, kMaxLen)); }

// Of heads of keys whose tiles are taken together, the longest first: so many that what they read and write, `bytes` a
// head, stays in the L2 cache.
constexpr double kSectionBytes = 32 << 20;
inline int section_heads(double bytes, double most_bytes = kSectionBytes) {
  constexpr int kMost = 64;
  int heads = 1;
  while (heads < kMost && 2 * heads * bytes <= most_bytes) heads *= 2;
  return heads;
}
// Of a backward, whose heads of keys have `bytes` each. With a band, blocks differ in length: the longest of a section
// come first. In a fixed order each waits for the one before it in its head. Blocks that are alike go head after head.
// In no order half of that: on an H200 1 to 2 % quicker at 2048 and 4096 queries, as quick elsewhere
// (docs/notes/sm90.md).
constexpr double kSectionOfBackward = 16 << 20;
constexpr int kSectionInOrder = 16;  // heads at most, in a fixed order: blocks of a head begin together
// Of `units` heads with `tiles` each. Where a section has fewer tiles than there are multiprocessors, several are under
// way and share the cache all the same, and the longest tile of the last begins late: where tiles are few, all heads
// are one section then, and the shortest tiles of all come last. Few are fewer if the cache holds a section, and that
// is nearly as many tiles: on an H200 2.9 for each multiprocessor won 8 to 15 % as one section, 5.8 lost 2 to 5.
constexpr double kMinTiles = 8, kMinTilesHeld = 3.5, kNearly = 0.9;
inline int joined_section(double bytes, int64_t tiles, int units, int multiprocessors) {
  const int heads = section_heads(bytes, kSectionOfBackward);
  const double filled = double(heads * tiles) / multiprocessors, all = double(tiles * units) / multiprocessors;
  const bool held = heads * bytes <= kSectionOfBackward && filled >= kNearly;
  return filled < 1 && all <= (held ? kMinTilesHeld : kMinTiles) ? std::max(units, heads) : heads;
}
struct KeyOrder { bool alike, in_order; };
inline int section_of(KeyOrder by, double bytes, int64_t tiles, int units, int multiprocessors) {
  if (by.alike && !by.in_order) return 1;
  if (by.in_order) return std::min(kSectionInOrder, section_heads(bytes));
  return joined_section(bytes, tiles, units, multiprocessors);
}
// Of parts of heads that share keys, by blocks that stay: as many as are under way at once, or as the cache holds.
inline int section_of_parts(double bytes, int64_t tiles, int multiprocessors) {
  return std::max(section_heads(bytes, kSectionOfBackward), int(multiprocessors / std::max<int64_t>(tiles, 1)));
}
// Of a backward: blocks stay and take tiles of keys from a counter. That saves most of a tile's beginning and end, and
// costs a little in every step, so it counts how many rows see a key: in the mean, of all heads that share it. On an
// H200 2048 rows won and 4096 did not; with steps of 80 queries, or where idle warps prepare, 8192 won, and 16384 were
// as quick either way; in a fixed order 512 won and 1024 did not (docs/notes/sm90.md), but at d64, where only blocks
// that stay add from registers.
constexpr double kPersistentRows = 3072, kPersistentRowsLonger = 24576, kPersistentRowsDeterministic = 768;
struct KeyWalk {
  double rows = 0;
  int64_t tiles = 0;  // of keys, of all heads
  bool transposed = false, prepares = false, in_order = false, pieced = false, narrow = false;  // the last: d64
};
inline bool may_persist(KeyWalk w, int multiprocessors) {
  const bool longer = w.in_order ? w.narrow : w.transposed || w.prepares;
  const double most = longer ? kPersistentRowsLonger : w.in_order ? kPersistentRowsDeterministic : kPersistentRows;
  return w.tiles > multiprocessors ? w.rows <= most : w.pieced;
}
// Tiles come in waves, and of the last wave not all blocks have one; with a diagonal the first tiles are long, and
// others wait for them. So those are divided into pieces, which have as many of a tile's query tiles as the others or
// one more. Into how many is reckoned in steps, by times of an H200 (docs/notes/sm90.md).
struct KeySteps {
  int64_t tiles, units;  // of a head; heads
  int group;             // steps of a tile for each of its query tiles
  bool narrow;           // d64: sums are half as wide, and a kernel with pieces takes 3 % more for each step
};
constexpr double kStepsOfTile = 2, kStepsOfAdding = 0.6, kStepsOfLeaving = 0.03;  // beside its own; a piece's sums
constexpr double kStepsSaved = 0.75, kPartSaved = 1. / 128, kPartSavedNarrow = 1. / 24, kPartSavedByLength = 1. / 8;
constexpr int kMostPieces = 16, kPiecesOfBlock = 2;  // of a tile; of a block, in the mean: bounds the memory they take
inline double steps_of_sums(const KeySteps& w, int pieces, int64_t divided) {
  return pieces * (kStepsOfAdding + double(divided) * (w.narrow ? kStepsOfLeaving / 2 : kStepsOfLeaving));
}

// Tiles that all have as many query tiles: those behind the last whole wave are divided.
inline int64_t behind_waves(const KeySteps& w, int multiprocessors) { return w.tiles * w.units % multiprocessors; }
inline int pieces_alike(const KeySteps& w, int query_tiles, int multiprocessors) {
  const auto waves = [=](int64_t works) { return double((works + multiprocessors - 1) / multiprocessors); };
  const auto steps = [=](int n) { return double((query_tiles + n - 1) / n * w.group) + kStepsOfTile; };
  const int64_t rest = behind_waves(w, multiprocessors), most = kPiecesOfBlock * int64_t(multiprocessors);
  const double all = waves(w.tiles * w.units) * steps(1), part = w.narrow ? kPartSavedNarrow : kPartSaved;
  double least = steps(1) - std::max(kStepsSaved, all * part);
  int best = 1;
  for (int n = 2; rest > 0 && n <= std::min(kMostPieces, query_tiles) && rest * n <= most; ++n) {
    const double time = waves(rest * n) * steps(n) + steps_of_sums(w, n, rest);
    if (time < least) least = time, best = n;
  }
  return best;
}

// Tiles of which the n-th of a head has query_tiles(n), no more than the one before, where all heads are one section:
// those that are longer than a piece of the first are divided.
template <class QueryTiles>
int64_t longer_than_pieces(const KeySteps& w, QueryTiles query_tiles, int pieces) {
  const int least = std::max((query_tiles(0) + pieces - 1) / pieces + 1, pieces);
  int64_t n = 0;
  while (n < w.tiles && query_tiles(n) >= least) ++n;
  return n * w.units;
}
template <class QueryTiles>
int pieces_by_length(const KeySteps& w, QueryTiles query_tiles, int multiprocessors) {
  const int first = query_tiles(0);
  double all = 0;
  for (int64_t n = 0; n < w.tiles; ++n) all += query_tiles(n) * w.group + kStepsOfTile;
  const auto time = [&](double longest, double more) {
    return std::max(longest * w.group + kStepsOfTile, (all * double(w.units) + more) / multiprocessors);
  };
  const double whole = time(first, 0);
  double least = whole - std::max(kStepsSaved, whole * kPartSavedByLength);
  int best = 1;
  for (int n = 2; n <= std::min(kMostPieces, first); ++n) {
    const int64_t divided = longer_than_pieces(w, query_tiles, n), next = divided / w.units;
    if (divided * n > kPiecesOfBlock * int64_t(multiprocessors)) break;
    const int longest = std::max((first + n - 1) / n, next < w.tiles ? query_tiles(next) : 0);
    const double with_pieces = time(longest, kStepsOfTile * double(divided * (n - 1))) + steps_of_sums(w, n, divided);
    if (with_pieces < least) least = with_pieces, best = n;
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
