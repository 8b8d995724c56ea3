// SPDX-License-Identifier: Apache-2.0
// The minimum work of a problem: operations and bytes, from the pairs that are actually visible. Benchmarks, tuning and
// reports take every derived number from here.
#pragma once
#include "core/args.h"

namespace attune {

struct Cost {
  double pairs = 0;  // visible (query, key) pairs, over batch and query heads
  double flops = 0;  // a multiply-add counts as two; the softmax is not counted
  double bytes = 0;  // every input read once and every output written once
};

// With arguments, uses the lengths, positions and lists given there (CPU tensors). Without, uses the bounds, aligns
// queries as the mask does (absolute masks as bottom-right) and counts every block of a list as present.
Cost cost(const Problem&, const Args* = nullptr);

// Number of pairs (i, j) visible under the band, with i in `queries` and j in `keys`. Closed form.
double visible_pairs(const Band&, Rows queries, Rows keys);

}  // namespace attune
