// What a problem must do at least: operations and bytes, from the pairs that are really visible. Benchmarks, tuning
// and reports take every derived number from here.
#pragma once
#include "core/args.h"

namespace attune {

struct Cost {
  double pairs = 0;  // visible (query, key) pairs, over batch and query heads
  double flops = 0;  // a multiply-add is two; the softmax is not counted
  double bytes = 0;  // every input read once and every output written once
};

// With arguments, of the lengths, positions and lists given there (CPU tensors); without, of the bounds, every query
// aligned as the mask says (absolute ones bottom-right) and every block of a list present.
Cost cost(const Problem&, const Args* = nullptr);

// Pairs (i, j) that the band shows, i < len_q and keys.first <= j < keys.last. Closed form.
double visible_pairs(const Band&, Rows queries, Rows keys);

}  // namespace attune
