// SPDX-License-Identifier: Apache-2.0
// Named patterns: which key blocks a query block attends to. They are predicates shared by CPU and GPU, so a list is
// the same bit for bit wherever it is built. Patterns are defined on key blocks for both sides: a query block covers
// the key blocks that its tokens' positions fall into (one if both sides have equal length and block size). It takes
// what the pattern gives to any of them. Blocks hidden by the band are never listed; `shown` is the range of visible
// blocks. Density is the kept fraction of the visible blocks.
#pragma once
#include <string_view>

#include "core/dropout.h"
#include "core/problem.h"

namespace attune {

// The block grid of one sequence.
struct BlockGrid {
  Band band{};
  int len_q = 0, len_k = 0;
  Blocks size{};

  ATTUNE_HD int rows() const { return int(ceil_div(len_q, size.q)); }
  ATTUNE_HD int columns() const { return int(ceil_div(len_k, size.k)); }
  ATTUNE_HD Rows queries(int row) const {
    return {clamp(int64_t(row) * size.q, 0, len_q), clamp(int64_t(row + 1) * size.q, 0, len_q)};
  }
  // Key blocks with at least one pair visible to the row: half-open, empty for a row outside the sequence.
  ATTUNE_HD Rows shown(int row) const {
    const Rows q = queries(row);
    if (q.first >= q.last) return {0, 0};
    const BandWalk walk{band, len_k, size.k};
    const int first = walk.first_key(q.first), last = walk.last_key(q.last - 1);
    return first < last ? Rows{first / size.k, int(ceil_div(last, size.k))} : Rows{0, 0};
  }
  // Key blocks at the row's query positions. Positions before the first key or after the last one are clamped.
  ATTUNE_HD Rows homes(int row) const {
    const Rows q = queries(row);
    if (q.first >= q.last || !len_k) return {0, 0};
    return {home(q.first), home(q.last - 1) + 1};
  }
  ATTUNE_HD int home(int i) const {
    return clamp(floor_div(band.q_position(i) - band.k_first, band.k_step), 0, len_k - 1) / size.k;
  }
};

// A keyed permutation of 0 ... count - 1 without a table, so that a row draws exactly as many blocks as it may: a
// Feistel network over the next power of two, repeated while the result is out of range. Ten rounds: with four, small
// counts favour some pairs.
struct Shuffle {
  uint32_t key[4];
  int high, low;  // bits of the two halves
  uint32_t count;

  ATTUNE_HD Shuffle(uint64_t seed, uint32_t list, uint32_t row, uint32_t n) : count(n) {
    const Words4 w = philox({{row, list, n, 0x626C6B73u}}, uint32_t(seed), uint32_t(seed >> 32));
    for (int i = 0; i < 4; ++i) key[i] = w.w[i];
    int bits = 2;
    while (bits < 31 && (uint32_t(1) << bits) < n) ++bits;
    high = bits / 2, low = bits - high;
  }
  ATTUNE_HD static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
  }
  ATTUNE_HD uint32_t operator()(uint32_t x) const {
    const uint32_t mask_high = (1u << high) - 1, mask_low = (1u << low) - 1;
    do {
      uint32_t a = x >> low, b = x & mask_low;
      for (uint32_t round = 0; round < 10; round += 2) {
        a ^= mix(b + key[round % 4] + round * 0x9E3779B9u) & mask_high;
        b ^= mix(a + key[round % 4 + 1] + round * 0x9E3779B9u) & mask_low;
      }
      x = a << low | b;
    } while (x >= count);
    return x;
  }
};

enum class PatternKind : int32_t {
  dense, local_window, dilated_rates, dilated_offsets, dilated_multiples, global_local, strided, random, hierarchical,
  streaming,
  count
};
enum class HeadKind : int32_t { sparse, dense, streaming };  // sparse: follows the pattern

// A parsed pattern, in key blocks: `local_window window=512` with blocks of 64 is half = 4. It has no pointers, so it
// can be a kernel parameter.
struct Pattern {
  static constexpr int kMost = 8, kHeads = 256;
  static constexpr int kEverywhere = 1 << 30;  // half width of an unlimited window
  static constexpr int64_t kWhole = 1000000;   // density 1

  PatternKind kind = PatternKind::dense;
  int32_t half = 0;                // half width of a window
  int32_t first = 0;               // number of global columns
  int32_t global_rows = 0;         // 1: global rows see everything too
  int32_t count = 0;               // entries of rate
  int32_t rate[kMost] = {};        // rates, strides, or strides of levels
  int32_t reach[kMost] = {};       // half windows of levels
  int32_t steps = 0;               // dilated_offsets: steps to either side
  int32_t density = 0;             // random: density in millionths
  uint32_t seed[2] = {};
  int32_t sink = 0, local = 0;     // streaming: leading blocks, and blocks up to and including its own
  int32_t head_kinds = 0;          // number of given kinds; head h has kind h mod that; 0: all sparse
  uint32_t head_kind[kHeads / 16] = {};  // two bits each

  ATTUNE_HD HeadKind kind_of(int head) const {
    if (!head_kinds) return HeadKind::sparse;
    const int n = head % head_kinds;
    return HeadKind(head_kind[n / 16] >> (n % 16 * 2) & 3);
  }
  // Whether heads differ, so that one list cannot serve all.
  ATTUNE_HD bool by_head() const {
    return head_kinds > 1 || kind == PatternKind::random || (kind == PatternKind::dilated_offsets && count > 1);
  }
  ATTUNE_HD bool draws(int head) const { return kind == PatternKind::random && kind_of(head) == HeadKind::sparse; }
  // How many of the first `shown` blocks of a list are drawn. Rows take differences, so the total is exact.
  ATTUNE_HD int64_t drawn(int64_t shown) const { return (shown * density + kWhole / 2) / kWhole; }

  // Whether a query block at key block i attends to key block j. Not for patterns that draw.
  ATTUNE_HD bool active(int head, int i, int j) const {
    const int apart = j > i ? j - i : i - j;
    switch (kind_of(head)) {
      case HeadKind::dense: return true;
      case HeadKind::streaming: return j < sink || apart < local;
      default: break;
    }
    switch (kind) {
      case PatternKind::local_window: return apart <= half;
      case PatternKind::dilated_rates:
        for (int n = 0; n < count; ++n)
          if (apart == rate[n]) return true;
        return apart == 0;
      case PatternKind::dilated_offsets: {
        const int r = rate[head % count];
        return apart % r == 0 && apart / r <= steps;
      }
      case PatternKind::dilated_multiples:
        for (int n = 0; n < count; ++n)
          if (i % rate[n] == 0 && j % rate[n] == 0) return true;
        return apart <= 1;
      case PatternKind::global_local: return j < first || apart <= half || (global_rows && i < first);
      case PatternKind::strided: return j % rate[0] == 0 || apart <= 1;
      case PatternKind::hierarchical:
        for (int n = 0; n < count; ++n)
          if (i % rate[n] == 0 && apart <= reach[n]) return true;
        return false;
      case PatternKind::streaming: return j < sink || apart < local;
      default: return true;
    }
  }
};

// One row of one list, ready for queries block by block.
struct PatternRow {
  const Pattern& pattern;
  int head;
  Rows shown, homes;
  int keep;  // drawing rows: the number of blocks
  Shuffle shuffle;

  ATTUNE_HD PatternRow(const Pattern& p, const BlockGrid& grid, int list, int h, int row, int drawn = 0)
      : pattern(p), head(h), shown(grid.shown(row)), homes(grid.homes(row)), keep(drawn),
        shuffle(uint64_t(p.seed[1]) << 32 | p.seed[0], uint32_t(list), uint32_t(row),
                uint32_t(shown.last - shown.first)) {}
  ATTUNE_HD bool active(int j) const {
    if (j < shown.first || j >= shown.last) return false;
    if (pattern.draws(head)) return int(shuffle(uint32_t(j - shown.first))) < keep;
    for (int i = homes.first; i < homes.last; ++i)
      if (pattern.active(head, i, j)) return true;
    return false;
  }
};

std::string name(PatternKind);
// Parses "0.125" as millionths; false unless it is a number in 0 ... 1 with at most six decimals.
bool parse_millionths(std::string_view text, int32_t& out);
// Parses "random density=0.1 seed=7", "global_local global=64 window=512 kinds=30*sparse,2*dense". Tokens become blocks
// of mask.blocks, whose bound is ignored. Invalid text yields one sentence. docs/block_sparse.md has the grammar.
Status parse(std::string_view text, const Problem&, Pattern& out);

// The maximum number of entries in `batch` x `heads` lists of the pattern: at the bounds of the problem's lengths if
// `full`, otherwise for any sequence lengths.
int64_t bound(const Pattern&, const Problem&, int batch, int heads, bool full);

}  // namespace attune
