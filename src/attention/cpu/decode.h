// SPDX-License-Identifier: Apache-2.0
// Decode, a forward of few rows: keys are read where they lie, once, instead of being packed for a panel of rows that
// are not there.
#pragma once
#include "attention/cpu/unit.h"

namespace attune::cpu {

inline constexpr int kDecodeKernel = 1;  // Plan::kernel

// True if the rows of a KV head are few enough. Never with repro=batch, whose bits are those of panels.
bool is_decode(const Problem&, const CpuKernels&);
Status shape_decode(Plan&);
Status attend_decode(const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::cpu
