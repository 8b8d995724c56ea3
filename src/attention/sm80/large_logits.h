// Weights of a backward where the log-sum-exp of a row is far (core/large_logit.h), for a warp's M * 16 keys and N * 8
// rows. Whether one is, a warp knows before its products: where none is, that is all it costs.
#pragma once
#include "core/large_logit.h"
#include "machine/sm80/mma.h"

namespace attune::sm80 {

// Of rows in shared memory, log-sum-exp and delta each; those that see nothing count too. By a whole warp.
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

// Dot products of rows that count as having a log-sum-exp of 0, so that their weights come out the usual way and are 1
// at most. lse: of a thread's row 0, 1, 8, 9, 16, ...
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

// Scores to P and dP to dS of such rows: another way beside the usual one, which so has no branch between weights and
// dS. scale: base 2; in: Kept::in, which delta is times in `rows`.
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
