// SPDX-License-Identifier: Apache-2.0
// Runs one call of a problem on a GPU between cuProfilerStart and cuProfilerStop, so that a profiler sees that call
// only. A warm-up call before it loads the kernels.
#pragma once
#include "core/device.h"
#include "tool/bench/axes.h"

namespace attune {

Status run_once(const BenchRow&, const Device&, std::string_view backend);
// Fails if no backend, or not the named one, supports the problem on this device.
Status can_run_once(const BenchRow&, const Device&, std::string_view backend);

}  // namespace attune
