// SPDX-License-Identifier: Apache-2.0
// Checks the buffers that are timed. The reference is too slow for long sequences, so rows are sampled: an output row
// costs one walk over the keys, by the definition and in double. A backward is checked against the out and lse it was
// given. Kernel bugs hit tiles, heads or edges rather than single rows, so the first and last row are always sampled.
#pragma once
#include "core/args.h"
#include "tool/record/record.h"

namespace attune {

// Fails if rows of this problem cannot be sampled. Variants that can: native sparse attention with mean or no
// compression, dilated attention with one softmax per row, formulas, and adaptive forwards. The lists and scores that
// an adaptive forward wrote are taken as given.
Status can_draw(const Problem&);

Checked spot_check(const Problem&, const Args&, uint64_t seed, int rows = 24);

// The result rows that this check reads, so that only these are fetched from a GPU. Known only for plain attention over
// keys that are not paged; empty means that the check may read everything.
struct ResultRow {
  Role role{};
  int64_t batch = 0, seq = 0, head = 0;
};
std::vector<ResultRow> rows_read(const Problem&, const Args&, uint64_t seed, int rows = 24);

}  // namespace attune
