// SPDX-License-Identifier: Apache-2.0
// Backward weights for rows with a large log-sum-exp (core/large_logit.h), for the M * 16 keys and N * 8 rows of a
// warp. A warp tests its rows before the products; if none is large, this test is the only cost.
#pragma once
#include "core/large_logit.h"
#include "machine/sm80/mma.h"

namespace attune::sm80 {

// True if any row in shared memory (log-sum-exp, delta) has a large log-sum-exp; rows that see no key count too. Called
// by a whole warp.
template <int kRows>
__device__ inline bool any_large_logit(const float2* rows, int lane) {
  static_assert(kRows <= 32);
  return __any_sync(~0u, is_lowered(rows[lane % kRows].x));
}

template <int M, int N>
__device__ inline void cut_large_logits(Accumulator (&weight)[M][N], const float2* rows, int lane) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        weight[m][n].c[e] = weight_of_large_logit(weight[m][n].c[e], rows[n * 8 + lane % 4 * 2 + e % 2].x);
}

// Shifts the dot products of large rows as if their log-sum-exp were 0, so the usual code computes weights of at most
// 1. lse(i): log-sum-exp of the thread's rows i = 0, 1, 8, 9, 16, ...
template <int M, int N, class Lse>
__device__ inline void lower_large_logits(Accumulator (&s)[M][N], float scale, Lse lse) {
  const float base2 = scale * kLog2e, inverse = 1.f / base2;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float lowered = lse_of_weights(lse(n * 8 + e % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float exponent = fmaf(s[m][n].c[e], base2, -lowered);
        if (is_large_logit(lowered)) s[m][n].c[e] = exponent > 0.f ? 0.f : exponent * inverse;
      }
    }
}

// Computes P from scores and dS from dP for tiles with large rows. A separate path keeps the usual one free of branches
// between weights and dS. scale: base 2; in: Kept::in, which delta in `rows` already contains.
template <int M, int N, class Lse>
__device__ inline void differentiate_large_logits(Accumulator (&s)[M][N], Accumulator (&dp)[M][N], const float2* rows,
                                                  int lane, float scale, float in, Lse lse) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float lowered = lse_of_weights(lse(n * 8 + e % 2)), delta = rows[n * 8 + lane % 4 * 2 + e % 2].y;
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float weight = weight_of_large_logit(exp2_fast(fmaf(s[m][n].c[e], scale, -lowered)), lowered);
        s[m][n].c[e] = weight, dp[m][n].c[e] = weight * fmaf(dp[m][n].c[e], in, -delta);
      }
    }
}

}  // namespace attune::sm80
