// SPDX-License-Identifier: Apache-2.0
// Building block lists: the request, and the row that CPU and GPU code walk alike. Lists are built on the device of the
// data, in ascending order, from a pattern or from a dense mask. The list by key block is built from the list by query
// block.
#pragma once
#include "core/variant/adaptive.h"

namespace attune {

// A block is active if its byte is nonzero: [batch | 1, head | 1, query blocks, key blocks], key blocks contiguous.
struct BlockMask {
  const uint8_t* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides; 0 for a broadcast axis

  ATTUNE_HD bool active(int b, int h, int i, int j) const { return data[b * batch + h * head + i * row + j] != 0; }
};

enum class BlockOrigin : int32_t {
  pattern, mask,
  lists,  // the lists by query block already exist
  best,   // as many as adaptive.h keeps at the pattern's density: only the rows are placed, a scorer writes the entries
};

// Statistics that a build writes next to the lists, each an int64.
enum class BlockCount : int32_t {
  active,   // entries of all lists
  shown,    // visible blocks of all lists: density is active / shown
  longest,  // entries of the longest row
  dropped,  // entries beyond the bound; always 0 for a pattern that is built with its own bound
  count
};

// Everything a build needs, as one kernel parameter. Lengths come from the arguments of the attention. Lists with one
// batch row for many sequences use the problem's bounds.
struct BlockBuild {
  Problem problem{};
  DenseArgs args{};
  BlockOrigin origin = BlockOrigin::pattern;
  Pattern pattern{};
  BlockMask mask{};
  int64_t* counts = nullptr;  // [BlockCount::count]; may be null
  int32_t batch = 1, heads = 1, rows = 0, columns = 0;  // numbers of lists, and of blocks by the bounds

  ATTUNE_HD int lists() const { return batch * heads; }
  ATTUNE_HD int32_t* begin(Role r, int list) const { return args.row<int32_t>(r, list / heads, 0, list % heads); }
  ATTUNE_HD int32_t* entries(Role r) const { return args.row<int32_t>(r); }
  ATTUNE_HD int limit(int64_t entry) const { return clamp(entry, 0, problem.mask.blocks.bound); }
  ATTUNE_HD BlockGrid grid(int list) const {
    const Problem& p = problem;
    if (batch == 1 && p.batch > 1)
      return {band_of(p.mask, p.len_q, p.len_k, 0, 0), p.len_q, p.len_k, p.mask.blocks};
    const Sequence s = sequence(p, args, list / heads);
    return {s.band, s.len_q, s.len_k, p.mask.blocks};
  }
  // The entries of a row with `shown` visible blocks, where the count alone decides (see by_count()).
  ATTUNE_HD int counted(int shown) const {
    return origin == BlockOrigin::best ? Adaptive{.density = pattern.density}.kept(shown) : shown;
  }
  ATTUNE_HD bool by_count(int list) const { return draws(list) || origin == BlockOrigin::best; }
  ATTUNE_HD bool draws(int list) const { return origin == BlockOrigin::pattern && pattern.draws(list % heads); }
};

// One row of a list under construction.
struct BlockRow {
  const BlockBuild& build;
  int list, row;
  PatternRow by_pattern;

  ATTUNE_HD BlockRow(const BlockBuild& x, const BlockGrid& grid, int l, int r, int drawn = 0)
      : build(x), list(l), row(r), by_pattern(x.pattern, grid, l, l % x.heads, r, drawn) {}
  ATTUNE_HD Rows shown() const { return by_pattern.shown; }
  ATTUNE_HD bool active(int j) const {  // requires a visible block
    return build.origin == BlockOrigin::mask ? build.mask.active(list / build.heads, list % build.heads, row, j)
                                             : by_pattern.active(j);
  }
};

}  // namespace attune
