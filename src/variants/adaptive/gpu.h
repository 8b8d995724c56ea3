// The scorer of content-adaptive blocks on a GPU: core/variant/scorer.h, a block of threads a task, and the choice of
// the best.
#pragma once
#include "core/variant/scorer.h"

namespace attune::cuda {

// Dynamic shared memory that choosing needs for so many key blocks, and how many every GPU has room for.
constexpr int chooser_bytes(int columns, int hidden) { return (columns + 2 * hidden) * int(sizeof(float)); }
constexpr int most_columns(int hidden) { return 60 * 1024 / int(sizeof(float)) - 2 * hidden; }

// Terms and scores; the entries of the list, whose rows are placed already.
Status score_blocks(const Scorer&, int device, void* stream);
// From the gradients of the entries to those of the weights, and added to dq and dk.
Status score_gradients(const Scorer&, int device, void* stream);

}  // namespace attune::cuda
