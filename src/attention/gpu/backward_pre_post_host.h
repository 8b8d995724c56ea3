// SPDX-License-Identifier: Apache-2.0
// Launches of the pre- and postprocessing kernels (gpu/backward_pre_post.h), for every backend with kernels that own
// keys. The kernels are compiled in one place, since two copies would have the same host symbol.
#pragma once
#include "attention/gpu/backward_pre_post.h"
#include "plan/backend.h"

namespace attune::sm80 {

// For ordinary logits, queries and keys have magnitude 1 / sqrt(scale * sqrt(dim)). dS times the inverse of that has
// the magnitude of dQ and dK, and lies within the range of f16 if they do. With the usual scale the factor is 1.
Kept kept(float scale, int dim);

struct Place { int device, arch; };

// BackwardParams::launch. Uninitialized memory matches it only by chance; the run is then merely slower.
uint64_t next_launch();
// Computes the statistics of all rows and clears dQ, for the first x.prepared heads if that is set. Also computes
// d_sinks if requested, which requires all heads.
Status backward_prepare(std::string_view who, const BackwardParams&, Place, Stream);
// Sets the rows of a tensor to 0; bytes between them are not touched.
Status backward_clear(std::string_view who, const Problem&, const Tensor&, Place, Stream);
// Converts dQ to its tensor.
Status backward_finish(std::string_view who, const BackwardParams&, Place, Stream);

}  // namespace attune::sm80
