// SPDX-License-Identifier: Apache-2.0
// Online softmax: a running state that absorbs tiles and merges with other states. KV splits of a decode, chunks of a
// tile loop and ranks of a ring all use the same merge. An attention sink is one more part whose output is 0.
//
// Conventions for the whole library: logits are in base 2 internally (scale * log2 e folded in); the log-sum-exp that
// leaves the library is natural; a row that sees no key has output 0 and log-sum-exp -inf.
#pragma once
#include <cmath>

#include "core/number.h"

namespace attune {

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

struct SoftmaxRow {
  float max = -INFINITY;
  float sum = 0.f;

  // Admits a tile whose largest logit is `tile_max`. The caller multiplies what it has accumulated by the returned
  // factor.
  ATTUNE_HD float admit(float tile_max) {
    const float raised = fmaxf(max, tile_max);
    const float factor = max == -INFINITY ? 0.f : exp2f(max - raised);
    max = raised;
    sum *= factor;
    return factor;
  }
  ATTUNE_HD float weight(float logit) const { return logit == -INFINITY ? 0.f : exp2f(logit - max); }
  ATTUNE_HD float normaliser() const { return sum == 0.f ? 0.f : 1.f / sum; }  // propagates NaN
  ATTUNE_HD float lse() const { return sum == 0.f ? -INFINITY : (max + log2f(sum)) * kLn2; }
};

// Merge weights of two finished parts from their natural log-sum-exps: out = a * share.a + b * share.b.
struct Share { float a, b, lse; };
ATTUNE_HD inline Share merge(float lse_a, float lse_b) {
  const float top = lse_a > lse_b || lse_a != lse_a ? lse_a : lse_b;
  if (top == -INFINITY) return {0.f, 0.f, -INFINITY};
  if (top == INFINITY) return {lse_a == top ? 1.f : 0.f, lse_a == top ? 0.f : 1.f, top};
  const float ea = expf(lse_a - top), eb = expf(lse_b - top);
  return {ea / (ea + eb), eb / (ea + eb), top + logf(ea + eb)};
}

// The end of a row: merges with the existing output, then with the sink. In a chain of accumulating runs only the last
// has the sink option, so the sink is merged once.
struct RowEnd {
  float before = 0.f;  // factor of the existing output, which is read only when accumulating
  float now = 0.f;     // factor of this run's unnormalised sum
  float lse = -INFINITY;

  ATTUNE_HD explicit RowEnd(const SoftmaxRow& row) : now(row.normaliser()), lse(row.lse()) {}
  ATTUNE_HD explicit RowEnd(float finished_lse) : now(finished_lse == -INFINITY ? 0.f : 1.f), lse(finished_lse) {}
  ATTUNE_HD void merge_running(float running_lse) {
    const Share s = merge(running_lse, lse);
    before = s.a, now *= s.b, lse = s.lse;
  }
  ATTUNE_HD void merge_sink(float sink) {
    const Share s = merge(lse, sink);
    before *= s.a, now *= s.a, lse = s.lse;
  }
};

}  // namespace attune
