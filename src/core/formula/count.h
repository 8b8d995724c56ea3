// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/formula/of_problem.h"

namespace attune {

constexpr int64_t kMostPairs = 1 << 20;  // counted one by one

// The visible pairs of all heads of sequence b, in the band and under the formula's mask and a score of -inf. Exact
// where boxes are decided and for up to kMostPairs others; of more, kMostPairs are sampled. Without arguments, or with
// arrays on a GPU, what depends on arrays counts as visible.
double formula_pairs(const Problem&, const Args*, int b, const Sequence&);

}  // namespace attune
