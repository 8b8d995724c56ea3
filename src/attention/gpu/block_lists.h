// SPDX-License-Identifier: Apache-2.0
// Builds block lists on a GPU: the kernels of core/variant/blocks.h, on the caller's stream. Nothing is waited for or
// read back, so a captured graph builds new lists at every replay.
#pragma once
#include "core/variant/blocks.h"

namespace attune::cuda {

// Builds the list by query block, unless given; the list by key block, if its roles are given; and the counts.
Status build_blocks(const BlockBuild&, int device, void* stream);

}  // namespace attune::cuda
