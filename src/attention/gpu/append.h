// SPDX-License-Identifier: Apache-2.0
// The append of attention/tile/append.h on a GPU: one small kernel before the attention, on the same stream and just as
// capturable.
#pragma once
#include "attention/tile/append.h"
#include "plan/backend.h"

namespace attune::cuda {

using Attend = Status (*)(const Plan&, const Args&, Workspace, Stream);

// Appends and rotates where the problem requires it, then attends with the result: the whole `run` of a backend whose
// `shape` counted carve_rotated() first. q and kv have one dtype: f32, f16 or bf16.
Status append_then(Attend, const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::cuda
