// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/formula/of_problem.h"

namespace attune {

constexpr int64_t kMostPairs = 1 << 20;  // counted one by one, of all sequences together

// The visible pairs of all heads of sequence b, in the band and under the formula's mask and a score of -inf. Exact
// where boxes are decided and for up to `most` others; of more, `most` are sampled. Without arguments, or with arrays
// on a GPU, what depends on arrays counts as visible, and so does what divides by 0.
double formula_pairs(const Problem&, const Args*, int b, const Sequence&, int64_t most);

// The sequences that may have different numbers of pairs without arguments: one, unless the formula reads b.
int formula_sequences(const Problem&);

}  // namespace attune
