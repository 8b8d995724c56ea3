// SPDX-License-Identifier: Apache-2.0
// Rows with large logits. From kLargeLogit on (base 2), one ulp of an f32 logit is 2 or more, and scaling and summing
// lose as much. The difference of two logits that were rounded separately then no longer determines the weight
// 2^difference.
#pragma once
#include "core/softmax.h"

namespace attune {

inline constexpr float kLargeLogit = 0x1p24f, kLargestLogit = 0x1.ffffp127f;  // still finite after lowering
ATTUNE_HD inline bool is_large_logit(float x) { return fabsf(x) >= kLargeLogit && fabsf(x) < INFINITY; }

// A backward computes its weights from an f32 log-sum-exp, 2^(logit - lse). A large lse is lowered by more than the
// combined error of both, while it stays large, and the exponent is capped at 0. The largest logit then has weight 1,
// and no weight exceeds 1.
ATTUNE_HD inline float lse_of_weights(float lse) {  // base 2; +inf where a row sees no key
  float base2 = lse * kLog2e;
  if (fabsf(base2) < kLargeLogit || lse == INFINITY) return base2;
  if (lse == -INFINITY) return INFINITY;
  if (fabsf(base2) > kLargestLogit)
    base2 = copysignf(kLargestLogit, lse);  // for example under a mask of -3e38: base 2 overflows f32
  const float lower = base2 - fabsf(base2) * 0x1p-19f;
  return base2 > 0.f && lower < kLargeLogit ? kLargeLogit : lower;
}
ATTUNE_HD inline bool is_lowered(float lse) { return fabsf(lse) >= kLargeLogit; }  // or a row that sees no key
ATTUNE_HD inline float exponent_of_weight(float logit, float lse) {
  const float x = logit - lse;
  return x > 0.f && is_lowered(lse) ? 0.f : x;
}
ATTUNE_HD inline float weight_of_large_logit(float weight,
                                             float lse) {  // the same cap applied to a weight; propagates NaN
  return weight > 1.f && is_lowered(lse) ? 1.f : weight;
}

}  // namespace attune
