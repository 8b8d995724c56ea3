// The scorer of content-adaptive blocks on a CPU: core/variant/scorer.h, a task at a time on every thread.
#pragma once
#include "core/variant/scorer.h"

namespace attune::cpu {

// Room for one thread to choose in: a score, a key and a number for every key block.
struct ChooserRoom {
  float *score = nullptr, *key = nullptr;
  int32_t* order = nullptr;
};

// Terms and scores; the entries of the list, whose rows are placed already. `room` has one for each worker.
void score_blocks(const Scorer&, const ChooserRoom* room, int workers);
// From the gradients of the entries to those of the weights, and added to dq and dk.
void score_gradients(const Scorer&);

}  // namespace attune::cpu
