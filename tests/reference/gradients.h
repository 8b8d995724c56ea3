// SPDX-License-Identifier: Apache-2.0
// Shared by the gradient tests: the reference of a case, and a loss that is a weighted sum.
#pragma once
#include <cmath>

#include "core/check.h"
#include "core/forward_of.h"
#include "plan/plan.h"
#include "tests/asked_case.h"

namespace attune {

inline Status run_reference(const Problem& p, const Args& a) {
  const Backend* reference = find_backend("reference");
  if (Status s = reference->supports(p, Device{}); !s.ok()) return s;
  return reference->run(Plan{.backend = reference, .problem = p}, a, {}, nullptr);
}

// Sum of weight * made, excluding rows that see no key and elements outside all sequences, whose weight is NaN.
inline double weighted(const Tensor& made, const Tensor& weight) {
  double sum = 0;
  const Extents e = made.extent;
  for (int b = 0; weight.data && b < e.batch; ++b)
    for (int s = 0; s < e.seq; ++s)
      for (int h = 0; h < e.head; ++h)
        for (int d = 0; d < e.dim; ++d) {
          const double x = load(made, b, s, h, d), w = load(weight, b, s, h, d);
          if (!std::isnan(w) && std::isfinite(x)) sum += x * w;
        }
  return sum;
}

}  // namespace attune
