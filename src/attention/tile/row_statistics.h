// SPDX-License-Identifier: Apache-2.0
// Memory layout of the row statistics of a backward: a log-sum-exp and a delta per row. Paired: two log-sum-exps, then
// two deltas, for each two rows. A thread that has two adjacent rows then loads either with one instruction.
#pragma once
#include <cstdint>

namespace attune::sm80 {

__device__ inline void store_statistics(float2* rows, int64_t row, bool paired, float2 x) {
  float* pair = reinterpret_cast<float*>(rows) + row / 2 * 4 + row % 2;
  if (paired) pair[0] = x.x, pair[2] = x.y;
  else rows[row] = x;
}
__device__ inline float2 load_statistics(const float2* rows, int64_t row, bool paired) {
  const float* pair = reinterpret_cast<const float*>(rows) + row / 2 * 4 + row % 2;
  return paired ? float2{pair[0], pair[2]} : rows[row];
}

}  // namespace attune::sm80
