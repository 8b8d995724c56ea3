// What a backward is the backward of. Its forward is derived here and nowhere else.
#pragma once
#include "core/args.h"
#include "core/problem.h"

namespace attune {

// What a backward accumulates are gradients, so its forward does not accumulate.
inline Problem forward_of(Problem backward) {
  backward.pass = Pass::forward;
  backward.dtype.grad = DType::none;
  backward.clear(Option::accumulate);
  return backward;
}

// Without the gradients, and without the lists by key block that only a backward walks.
inline Args forward_of(Args backward) {
  for (int n = 0; n < int(Role::count); ++n) {
    const bool gradient = (n >= int(Role::d_out) && n <= int(Role::d_sinks)) || n >= int(Role::d_variant);
    if (gradient || Role(n) == Role::block_begin_k || Role(n) == Role::block_row_k) backward[Role(n)] = {};
  }
  return backward;
}

}  // namespace attune
