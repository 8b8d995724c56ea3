// SPDX-License-Identifier: Apache-2.0
#include "core/formula/block_bounds.h"

#include <algorithm>

#include "core/formula/of_problem.h"

namespace attune {
namespace {

constexpr int64_t kMostCellsLooked = 64;  // per bound

// Cells of level 0 for an array of a problem, and of all levels together.
int64_t cells_of(const Problem& p, const Formula& f, int array) {
  const Extents e = extents_of(p, f, array);
  const double cells = double(e.batch) * e.seq * e.head * double(ceil_div(e.dim, BlockBounds::kFirst));
  return int64_t(std::clamp(cells, 64., double(BlockBounds::kMostCells)));
}
constexpr int64_t at_level(int64_t cells, int level) { return (cells >> (4 * level)) + 1; }
int64_t all_levels(int64_t cells) {
  int64_t sum = 0;
  for (int level = 0; level < BlockBounds::kLevels; ++level) sum += at_level(cells, level);
  return sum;
}

constexpr int64_t size_of_block(int level) {
  int64_t size = BlockBounds::kFirst;
  for (int n = 0; n < level; ++n) size *= BlockBounds::kFactor;
  return size;
}

void take(BlockBounds::Cell& into, double x) {
  into.lo = formula::least(into.lo, x), into.hi = formula::most(into.hi, x);
}

constexpr BlockBounds::Cell kNothing{INFINITY, -INFINITY};

void build(BlockBounds& one, BlockBounds::Cell* cells, int64_t room) {
  const Extents e = one.array.extent;
  const int64_t rows = one.rows();
  int finest = BlockBounds::kLevels;
  for (int level = BlockBounds::kLevels - 1; level >= 0; --level) {
    one.blocks[level] = ceil_div(e.dim, size_of_block(level));
    const int64_t count = rows * one.blocks[level];
    one.level[level] = count <= at_level(room, level) ? cells : nullptr;
    if (!one.level[level]) continue;
    std::fill_n(cells, count, kNothing);
    cells += count, finest = level;
  }
  one.all = kNothing;
  for (int64_t row = 0; row < rows; ++row)
    for (int d = 0; d < e.dim; ++d) {
      const double x = element_of(one.array, row / e.head / e.seq, row / e.head % e.seq, row % e.head, d);
      if (x != x) one.nan = true;
      else take(finest < BlockBounds::kLevels
                    ? one.level[finest][row * one.blocks[finest] + d / size_of_block(finest)] : one.all, x);
    }
  for (int64_t n = 0; finest < BlockBounds::kLevels && n < rows * one.blocks[finest]; ++n) {
    const BlockBounds::Cell from = one.level[finest][n];
    const int64_t row = n / one.blocks[finest], d = n % one.blocks[finest] * size_of_block(finest);
    one.all = {formula::least(one.all.lo, from.lo), formula::most(one.all.hi, from.hi)};
    for (int level = finest + 1; level < BlockBounds::kLevels; ++level) {
      if (!one.level[level]) continue;
      BlockBounds::Cell& into = one.level[level][row * one.blocks[level] + d / size_of_block(level)];
      into.lo = formula::least(into.lo, from.lo), into.hi = formula::most(into.hi, from.hi);
    }
  }
  if (one.all.lo > one.all.hi) one.all = {-INFINITY, INFINITY};  // nothing but NaN
}

}  // namespace

double element_of(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d) {
  const int64_t at = b * t.stride.batch + s * t.stride.seq + h * t.stride.head + d;
  switch (t.dtype) {
    case DType::f32: return static_cast<const float*>(t.data)[at];
    case DType::i64: return double(static_cast<const int64_t*>(t.data)[at]);
    default: return static_cast<const int32_t*>(t.data)[at];
  }
}

NumberRange BlockBounds::bound(const NumberRange* index, int indices) const {
  const int32_t extent[kMostIndices] = {array.extent.batch, array.extent.seq, array.extent.head, array.extent.dim};
  int64_t first[kMostIndices] = {}, last[kMostIndices] = {};
  for (int i = 0; i < indices; ++i) {
    const int axis = kMostIndices - indices + i;
    first[axis] = index[i].nan ? 0 : element_index(index[i].lo, extent[axis]);
    last[axis] = element_index(index[i].hi, extent[axis]);
  }
  const bool whole = array.dtype != DType::f32;
  const NumberRange everything{all.lo, all.hi, nan, whole};
  const int64_t lines = (last[0] - first[0] + 1) * (last[1] - first[1] + 1) * (last[2] - first[2] + 1);
  if (lines == 1 && first[3] == last[3]) {  // one element is its own bounds
    const double x = element_of(array, first[0], first[1], first[2], first[3]);
    return x != x ? everything : NumberRange{x, x, false, whole};
  }
  for (int n = 0; n < kLevels; ++n) {
    const int64_t size = size_of_block(n), from = first[3] / size, until = last[3] / size;
    if (!level[n] || lines > kMostCellsLooked || lines * (until - from + 1) > kMostCellsLooked) continue;
    Cell of = kNothing;
    for (int64_t b = first[0]; b <= last[0]; ++b)
      for (int64_t s = first[1]; s <= last[1]; ++s)
        for (int64_t h = first[2]; h <= last[2]; ++h) {
          const Cell* row = level[n] + ((b * extent[1] + s) * extent[2] + h) * blocks[n];
          for (int64_t d = from; d <= until; ++d)
            of = {formula::least(of.lo, row[d].lo), formula::most(of.hi, row[d].hi)};
        }
    // A block of nothing but NaN has no bounds.
    return of.lo <= of.hi ? NumberRange{of.lo, of.hi, nan, whole} : everything;
  }
  return everything;
}

BoxIs FormulaBounds::decide(const Formula& f, const PairBox& x) const {
  NumberRange value[kMostNodes];
  const auto element = [&](int n, const NumberRange* index) { return array[n].bound(index, f.array[n].indices); };
  return attune::decide(f, x, element, value);
}

void place_bounds(const Problem& p, const Formula& f, Workspace& ws, FormulaBounds& out) {
  for (int n = 0; n < f.arrays; ++n) {
    out.room[n] = cells_of(p, f, n);
    out.cells[n] = ws.take<BlockBounds::Cell>(size_t(all_levels(out.room[n])));
  }
}

void build_bounds(const Formula& f, const Args& a, FormulaBounds& out) {
  for (int n = 0; n < f.arrays; ++n) {
    out.array[n] = {};
    out.array[n].array = a[variant_tensor(n)];
    build(out.array[n], out.cells[n], out.room[n]);
  }
}

}  // namespace attune
