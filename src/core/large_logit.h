// Rows whose logits are far from 0. From kFar on (base 2) the last place of an f32 logit is 2 and more, and so is what
// is lost by scaling and summing: a difference of two that were rounded apart says nothing any more of the weight
// 2^difference.
#pragma once
#include "core/softmax.h"

namespace attune {

inline constexpr float kLargeLogit = 0x1p24f, kLargestLogit = 0x1.ffffp127f;  // lowered, it is still a number
ATTUNE_HD inline bool is_large_logit(float x) { return fabsf(x) >= kLargeLogit && fabsf(x) < INFINITY; }

// A backward has its weights from an f32 log-sum-exp, 2^(logit - lse). A far one is taken lower by more than both can
// be wrong, though it stays far, and the exponent then ends at 0: a weight is 1 where the logit is the largest, and
// never more.
ATTUNE_HD inline float lse_of_weights(float lse) {  // base 2; +inf where a row sees nothing
  float base2 = lse * kLog2e;
  if (fabsf(base2) < kLargeLogit || lse == INFINITY) return base2;
  if (lse == -INFINITY) return INFINITY;
  if (fabsf(base2) > kLargestLogit)
    base2 = copysignf(kLargestLogit, lse);  // of a mask of -3e38, say: f32 has no such number
  const float lower = base2 - fabsf(base2) * 0x1p-19f;
  return base2 > 0.f && lower < kLargeLogit ? kLargeLogit : lower;
}
ATTUNE_HD inline bool is_lowered(float lse) { return fabsf(lse) >= kLargeLogit; }  // or of a row that sees nothing
ATTUNE_HD inline float exponent_of_weight(float logit, float lse) {
  const float x = logit - lse;
  return x > 0.f && is_lowered(lse) ? 0.f : x;
}
ATTUNE_HD inline float weight_of_large_logit(float weight,
                                             float lse) {  // the same, once it is a weight; a NaN stays one
  return weight > 1.f && is_lowered(lse) ? 1.f : weight;
}

}  // namespace attune
