// A check of the very buffers that are timed. The reference is too slow for long sequences, so rows are drawn: an
// output row costs one walk over the keys, by the definition and in double. A backward is checked against the out and
// lse it was given. Mistakes of kernels hit tiles, heads or edges, not single rows: the first and last row are always
// among them.
#pragma once
#include "core/args.h"
#include "tool/record/record.h"

namespace attune {

// Whether rows of it can be drawn, or a sentence with the words "cannot be drawn". Of variants, native sparse attention
// (compressed by the mean), dilated attention with one softmax a row, and a forward of adaptive blocks, of which the
// lists and scores that it wrote are taken as they are.
Status can_draw(const Problem&);

Checked spot_check(const Problem&, const Args&, uint64_t seed, int rows = 24);

// Rows of the results that this check reads, where those are few: of plain attention over keys in their order. A GPU
// then gives back these alone. None: it may read all.
struct ResultRow {
  Role role{};
  int64_t batch = 0, seq = 0, head = 0;
};
std::vector<ResultRow> rows_read(const Problem&, const Args&, uint64_t seed, int rows = 24);

}  // namespace attune
