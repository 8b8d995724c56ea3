// The kernels of forward.sm90.few.h as sm90_forward's host side sees them: whether one of them should serve a problem,
// and its launch. Splits of such a plan are the warpgroups that share the queries of a tile; its kernel is that of a
// call that has lengths, which they do not serve.
#pragma once
#include "plan/backend.h"

namespace attune::sm90 {

inline constexpr int kFewQueries = 64;  // of a tile; no kernel of forward.sm90.h has so few

// Few queries of heads that share keys are one tile of a kernel of forward.sm90.h: of how many heads. The rows of one
// are a power of two, 16 at least, as many as a warp stores, and heads of different keys never meet in a tile. 1 unless
// that takes fewer waves. Pure.
int packed_heads(const Problem&, int rows, int tile_q, int units);

// Where one of them is quicker than the kernels of forward.sm90.h: the plan's tiles and splits are its. Pure.
void few_shape(Plan&);
inline bool is_few(const Plan& plan) { return plan.tile_q == kFewQueries; }
Status few_run(std::string_view who, const Plan&, const Args&, Stream);

}  // namespace attune::sm90
