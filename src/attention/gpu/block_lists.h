// Block lists on a GPU: core/variant/blocks.h by kernels, on the caller's stream. Nothing waits and nothing is read
// back, so a captured graph builds new lists at every replay.
#pragma once
#include "core/variant/blocks.h"

namespace attune::cuda {

// The list by query block, unless it is there; the list by key block, where its roles are given; the counts.
Status build_blocks(const BlockBuild&, int device, void* stream);

}  // namespace attune::cuda
