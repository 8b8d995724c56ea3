// SPDX-License-Identifier: Apache-2.0
// The scorer of content-adaptive blocks on a CPU: the steps of core/variant/scorer.h, one task at a time on every
// thread.
#pragma once
#include "core/variant/scorer.h"

namespace attune::cpu {

// Selection buffers of one thread: a score, a key and an index for every key block.
struct ChooserBuffers {
  float *score = nullptr, *key = nullptr;
  int32_t* order = nullptr;
};

// Computes terms and scores, and the entries of the list, whose rows are placed already. `room` has one per worker.
void score_blocks(const Scorer&, const ChooserBuffers* room, int workers);
// From the gradients of the entries to those of the weights; adds to dq and dk.
void score_gradients(const Scorer&);

}  // namespace attune::cpu
