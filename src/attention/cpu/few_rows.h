// SPDX-License-Identifier: Apache-2.0
// A forward of few rows (decode): keys are read where they lie, once, instead of being packed for a panel of rows that
// are not there.
#pragma once
#include "attention/cpu/unit.h"

namespace attune::cpu {

inline constexpr int kFewRowsKernel = 1;  // Plan::kernel

// True if the rows of a KV head are few enough. Never with repro=batch, whose bits are those of panels.
bool has_few_rows(const Problem&, const CpuKernels&);
Status shape_few_rows(Plan&);
Status attend_few_rows(const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::cpu
