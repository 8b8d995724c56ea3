// Weights of a backward where the log-sum-exp of a row is far (core/far.h), for a warp's M * 16 keys and N * 8 rows.
// Whether one is, a warp knows before its products: where none is, that is all it costs.
#pragma once
#include "core/far.h"
#include "machine/sm80/matrix.h"

namespace attune::sm80 {

// Of rows in shared memory, log-sum-exp and delta each; those that see nothing count too. By a whole warp.
template <int kRows>
__device__ inline bool any_far(const float2* rows, int lane) {
  static_assert(kRows <= 32);
  return __any_sync(~0u, is_lowered(rows[lane % kRows].x));
}

template <int M, int N>
__device__ inline void cut_far(Accumulator (&weight)[M][N], const float2* rows, int lane) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        weight[m][n].c[e] = weight_of_far(weight[m][n].c[e], rows[n * 8 + lane % 4 * 2 + e % 2].x);
}

// Scores to P and dP to dS: another way beside the usual one, so that nothing stands between the two in that.
template <int M, int N>
__device__ inline void differentiate_far(Accumulator (&s)[M][N], Accumulator (&dp)[M][N], const float2* rows, int lane,
                                         float scale, float in) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 row = rows[n * 8 + lane % 4 * 2 + e % 2];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float weight = weight_of_far(exp2_fast(fmaf(s[m][n].c[e], scale, -row.x)), row.x);
        s[m][n].c[e] = weight, dp[m][n].c[e] = weight * fmaf(dp[m][n].c[e], in, -row.y);
      }
    }
}

}  // namespace attune::sm80
