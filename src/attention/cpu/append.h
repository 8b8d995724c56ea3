// SPDX-License-Identifier: Apache-2.0
// The append of attention/tile/append.h on the CPU.
#pragma once
#include "attention/tile/append.h"
#include "plan/backend.h"

namespace attune::cpu {

using Attend = Status (*)(const Plan&, const Args&, Workspace, Stream);

// Appends and rotates where the problem requires it, then attends with the result: the whole `run` of a backend whose
// `shape` counted carve_rotated() first.
Status append_then(Attend, const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::cpu
