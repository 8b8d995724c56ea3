// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: rows with large logits, whose log-sum-exp loses more to rounding in its last place
// than a weight. The preprocessing has lowered it (lse_of_weights), so the weights of their largest scores come out far
// above 1, possibly infinite, and are limited to 1. A kernel checks for such rows once per launch, or once per tile, by
// its rows or its weights, as its time and registers allow.
#pragma once
#include "core/large_logit.h"
#include "machine/sm80/mma.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/scalar.h"

namespace attune::sm90 {

// Checks statistics in shared memory, a log-sum-exp and a delta per row. A lane reads two of 64 rows.
template <int Rows>
__device__ inline bool has_lowered(uint32_t stats) {
  const int lane = int(threadIdx.x % 32);
  bool lowered = false;
#pragma unroll
  for (int first = 0; first < Rows; first += 64) {
    if (first + 64 > Rows && first + 2 * lane >= Rows) continue;
    const float4 two = load_shared4(stats + first * 8 + lane * 16);
    lowered |= is_lowered(two.x) || is_lowered(two.z);
  }
  return __any_sync(~0u, lowered);
}

// Checks a warp's weights, in pairs of f16 or bf16: true if one is 2 or more, or NaN.
template <int N>
__device__ inline bool has_above_one(const uint32_t (&pairs)[N]) {
  uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) bits |= pairs[n];
  return __any_sync(~0u, (bits & 0x40004000u) != 0);
}

// Propagates NaN. fminf would return 1, and the row would look like any other.
__device__ inline float at_most_one(float weight) { return sm80::min_or_nan(weight, 1.f); }
template <int N>
__device__ inline void end_at_one(float (&weights)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) weights[n] = at_most_one(weights[n]);
}

}  // namespace attune::sm90
