// SPDX-License-Identifier: Apache-2.0
// The last step of dK and dV: the sum of their partial results.
#pragma once
#include "attention/sm80/nsa/selected_backward_instances.h"

namespace attune::sm80 {

// Adds the partial results of lists with several chunks, in order; one CTA per list and key tile.
template <class T>
__global__ void __launch_bounds__(256) selected_combine_kernel(const __grid_constant__ SelectedKeysParams y) {
  const SelectedParams& x = y.x;
  const int list = int(blockIdx.x) / y.tiles_per_block, tile = int(blockIdx.x) % y.tiles_per_block;
  const int2 slots = y.lists.slots[list];
  if (!slots.y) return;
  const int at_head = list / y.lists.blocks, b = int(x.heads_kv.divide(at_head)), head = int(x.heads_kv.rest(at_head));
  const Sequence s = x.sequence_of(b);
  const int64_t begin = int64_t(list % y.lists.blocks) * x.size, first = begin + tile * kKeysOfTile;
  const int keys = clamp(begin + x.size, 0, s.len_k) - int(first);
  const int width = x.problem.dim_qk + x.problem.dim_v;
  for (int n = threadIdx.x; n < min(keys, kKeysOfTile) * width / 2; n += 256) {
    const int row = n / (width / 2), column = n % (width / 2) * 2;
    const bool of_k = column < x.problem.dim_qk;
    const Tensor& t = x.args[of_k ? Role::dk : Role::dv];
    if (!t.data) continue;
    float2 sum{};
#pragma unroll 4
    for (int slot = 0; slot < slots.y; ++slot) {
      const float2 more = *reinterpret_cast<const float2*>(
          y.partial + ((int64_t(slots.x + slot) * y.tiles_per_block + tile) * kKeysOfTile + row) * width + column);
      sum = {sum.x + more.x, sum.y + more.y};
    }
    const int at = of_k ? column : column - x.problem.dim_qk;
    char* to = row_address(t, s.k_batch, s.k_first + first + row, head) + at * size_of(t.dtype);
    if (t.dtype == DType::f32) *reinterpret_cast<float2*>(to) = sum;
    else *reinterpret_cast<uint32_t*>(to) = pack<T>(sum.x, sum.y);
  }
}

}  // namespace attune::sm80
