// What comes before and after the kernels that own keys, for every backend that has such: launches of the kernels of
// gpu/backward_pre_post.h. Those are compiled once, here, since two copies would share one name on the host.
#pragma once
#include "attention/gpu/backward_pre_post.h"
#include "plan/backend.h"

namespace attune::sm80 {

// Where logits are ordinary, queries and keys are of the size 1 / sqrt(scale * sqrt(dim)): dS times the inverse of it
// is of the size of dQ and dK, and in the reach of f16 where those are. Under the usual scale it is 1.
Kept kept(float scale, int dim);

struct Place { int device, arch; };

// Of BackwardParams: memory of any content has it by chance only, and the run is then slower.
uint64_t next_launch();
// Statistics of all rows, dQ cleared, of the first heads if it has no others; d_sinks where it is wanted, and all are.
Status backward_prepare(std::string_view who, const BackwardParams&, Place, Stream);
// Rows of a tensor set to 0; bytes between them are left alone.
Status backward_clear(std::string_view who, const Problem&, const Tensor&, Place, Stream);
// dQ to its tensor.
Status backward_finish(std::string_view who, const BackwardParams&, Place, Stream);

}  // namespace attune::sm80
