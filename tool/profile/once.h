// One call of a problem on a GPU between cuProfilerStart and cuProfilerStop: what a profiler is to look at, and nothing
// else. The call before it loads what has to be loaded.
#pragma once
#include "core/device.h"
#include "tool/bench/axes.h"

namespace attune {

Status run_once(const BenchRow&, const Device&, std::string_view backend);
// Whether a backend, or the one that is named, takes it there.
Status can_run_once(const BenchRow&, const Device&, std::string_view backend);

}  // namespace attune
