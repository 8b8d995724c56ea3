// Launch of the kernels of sm90/forward/split_kv.h, for the host side of sm90_forward. Plan::splits is the number of
// warpgroups that share a query tile. Plan::kernel is the kernel for calls with lengths in tensors, which these kernels
// do not serve.
#pragma once
#include "attention/sm90/forward/cost.h"
#include "plan/backend.h"

namespace attune::sm90 {

inline bool is_split_kv(const Plan& plan) { return plan.tile_q == kSplitKvRows; }
Status split_kv_run(std::string_view who, const Plan&, const Args&, Stream);

}  // namespace attune::sm90
