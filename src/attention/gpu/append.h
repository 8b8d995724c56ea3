// append.h on a GPU: one small kernel in front of the attention, on the same stream and as capturable as that.
#pragma once
#include "attention/tile/append.h"
#include "plan/backend.h"

namespace attune::cuda {

using Attend = Status (*)(const Plan&, const Args&, Workspace, Stream);

// Appends and rotates where the problem asks for it, then attends with what that made: the whole `run` of a backend
// whose `shape` counted carve_rotated() first. q and kv of one dtype: f32, f16 or bf16.
Status append_then(Attend, const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::cuda
