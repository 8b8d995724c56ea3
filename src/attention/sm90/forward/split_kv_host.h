// The kernels of sm90/forward/split_kv.h as sm90_forward's host side sees them: their launch. Splits of such a plan are
// the warpgroups that share the queries of a tile; its kernel is that of a call that has lengths, which they do not
// serve.
#pragma once
#include "attention/sm90/forward/cost.h"
#include "plan/backend.h"

namespace attune::sm90 {

inline bool is_split_kv(const Plan& plan) { return plan.tile_q == kSplitKvRows; }
Status split_kv_run(std::string_view who, const Plan&, const Args&, Stream);

}  // namespace attune::sm90
