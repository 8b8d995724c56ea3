// SPDX-License-Identifier: Apache-2.0
// Minima and maxima of the arrays of a formula, by blocks of their last axis: 64 elements, then 1024, then 16384. One
// pass over an array builds them; a bound then reads a few cells, whatever the range.
#pragma once
#include "core/args.h"
#include "core/formula/interval.h"
#include "core/workspace.h"

namespace attune {

struct BlockBounds {
  static constexpr int kLevels = 3, kFirst = 64, kFactor = 16;
  static constexpr int64_t kMostCells = 1 << 15;  // of level 0; a larger array has only coarser bounds
  struct Cell { double lo, hi; };

  Tensor array{};
  Cell all{};                // of the whole array
  bool nan = false;          // some element is NaN
  Cell* level[kLevels]{};    // [row][block]; null: not kept
  int64_t blocks[kLevels]{};  // per row

  int64_t rows() const { return int64_t(array.extent.batch) * array.extent.seq * array.extent.head; }
  NumberRange bound(const NumberRange* index, int indices) const;
};

// An element as a number.
double element_of(const Tensor&, int64_t b, int64_t s, int64_t h, int64_t d);

// The bounds of every array of a formula. Their room follows from the problem; an array that is larger than the problem
// needs has coarser bounds.
struct FormulaBounds {
  BlockBounds array[kMostArrays];
  BlockBounds::Cell* cells[kMostArrays]{};
  int64_t room[kMostArrays]{};

  BoxIs decide(const Formula&, const PairBox&) const;
};
void place_bounds(const Problem&, const Formula&, Workspace&, FormulaBounds&);
void build_bounds(const Formula&, const Args&, FormulaBounds&);

}  // namespace attune
