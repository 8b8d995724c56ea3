// The kernels of forward.sm90.few.h as sm90_forward's host side sees them: whether one of them should serve a problem,
// and its launch. Splits of a plan are the warpgroups that share the queries of a tile; the rest of it is the plan of a
// call that has lengths, which they do not serve.
#pragma once
#include "plan/backend.h"

namespace attune::sm90 {

// 1: the kernels of forward.sm90.h are quicker. Pure.
int few_groups(const Problem&, const Device&);
Status few_run(std::string_view who, const Plan&, const Args&, Stream);

}  // namespace attune::sm90
