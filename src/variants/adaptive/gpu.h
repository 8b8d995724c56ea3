// SPDX-License-Identifier: Apache-2.0
// The scorer of content-adaptive blocks on a GPU: the steps of core/variant/scorer.h with one CTA per task, and the
// selection of the best blocks.
#pragma once
#include "core/variant/scorer.h"

namespace attune::cuda {

// Dynamic shared memory that selection needs for `columns` key blocks, and the number of columns that every GPU
// supports.
constexpr int chooser_bytes(int columns, int hidden) { return (columns + 2 * hidden) * int(sizeof(float)); }
constexpr int most_columns(int hidden) { return 60 * 1024 / int(sizeof(float)) - 2 * hidden; }

// Computes terms and scores, and the entries of the list, whose rows are placed already.
Status score_blocks(const Scorer&, int device, void* stream);
// From the gradients of the entries to those of the weights; adds to dq and dk.
Status score_gradients(const Scorer&, int device, void* stream);

}  // namespace attune::cuda
