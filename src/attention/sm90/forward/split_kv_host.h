// SPDX-License-Identifier: Apache-2.0
// Launch of the kernels of sm90/forward/split_kv.h, for the host side of sm90_forward. Plan::splits is the number of
// warpgroups that share a query tile. Plan::kernel is the kernel for calls that these kernels do not serve, such as
// those with lengths in tensors.
#pragma once
#include "attention/sm90/forward/choice.h"
#include "attention/sm90/forward/cost.h"
#include "plan/backend.h"

namespace attune::sm90 {

inline bool is_split_kv(const Plan& plan) { return plan.choice.as<ForwardChoice>().split_kv; }
Status split_kv_run(std::string_view who, const Plan&, const Args&, Stream);

}  // namespace attune::sm90
