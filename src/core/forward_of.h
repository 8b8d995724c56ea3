// SPDX-License-Identifier: Apache-2.0
// The forward that a backward belongs to. This is the only place that derives it.
#pragma once
#include "core/args.h"
#include "core/problem.h"

namespace attune {

// Accumulate in a backward applies to gradients, so its forward does not accumulate.
inline Problem forward_of(Problem backward) {
  backward.pass = Pass::forward;
  backward.dtype.grad = DType::none;
  backward.clear(Option::accumulate);
  return backward;
}

// Removes the gradients and the lists by key block, which only a backward walks.
inline Args forward_of(Args backward) {
  for (int n = 0; n < int(Role::count); ++n) {
    const bool gradient = (n >= int(Role::d_out) && n <= int(Role::d_sinks)) || n >= int(Role::d_variant);
    if (gradient || Role(n) == Role::block_begin_k || Role(n) == Role::block_row_k) backward[Role(n)] = {};
  }
  return backward;
}

}  // namespace attune
