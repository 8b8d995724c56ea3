// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: head splits, GQA groups divided among CTAs. dK and dV of each split go to memory in
// register order. A second kernel adds them, split after split: the same bits in every run.
#pragma once
#include <vector_types.h>

#include "core/number.h"
#include "core/problem.h"
#include "machine/sm80/mma.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::cuda {
class Launcher;
}
namespace attune::sm90 {

// Offset of four numbers of a lane, as in a fragment of 16 keys and 8 columns: [tile][warp][dK, dV][dim / 8][lane].
// Tiles have 128 keys and are numbered [sequence][KV head][head split][tile].
inline constexpr int kSplitWarps = 8;
ATTUNE_HD constexpr int64_t sums_offset(int dim, int64_t tile, int warp, bool of_v) {
  return ((tile * kSplitWarps + warp) * 2 + of_v) * (dim / 8) * 32;
}

// Factor whose product with a split's number has the KV head in its upper half. Not used without splits.
ATTUNE_HD constexpr uint32_t inverse_splits(int splits) {
  return splits > 1 ? uint32_t((1ull << 32) / uint32_t(splits)) + 1 : 0;
}

struct CombineDkDvParams {
  const float4* sums;
  int head_splits, tiles;    // per KV head
  int heads, keys;           // of a sequence
  int dim, dim_qk, dim_v;    // of the kernel; of the gradients
  float scale;               // of dK
  Tensor dk, dv;
};

constexpr int kCombineColumns = 32;  // columns of dK or dV of a tile, per CTA
ATTUNE_HD constexpr int combine_blocks(const CombineDkDvParams& x, int batch) {
  return batch * x.heads * x.tiles * 2 * (x.dim / kCombineColumns);
}

// A warp has the keys of the corresponding warp of the backward kernel, and a lane what that lane had.
template <class T>
__global__ void __launch_bounds__(kSplitWarps * 32) combine_dkdv_kernel(const __grid_constant__ CombineDkDvParams x) {
  constexpr int kFragments = kCombineColumns / 8;
  sm80::wait_for_previous();
  sm80::admit_next();
  const int slices = x.dim / kCombineColumns;
  int n = int(blockIdx.x);
  const int column = n % slices * kCombineColumns;
  n /= slices;
  const bool of_v = n % 2;
  n /= 2;
  const int tile = n % x.tiles, head_index = n / x.tiles, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int dim = of_v ? x.dim_v : x.dim_qk;
  float4 all[kFragments] = {};
#pragma unroll 2
  for (int split = 0; split < x.head_splits; ++split) {
    const int64_t from = (int64_t(head_index) * x.head_splits + split) * x.tiles + tile;
    const float4* const sums = x.sums + sums_offset(x.dim, from, warp, of_v) + column / 8 * 32 + lane;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const float4 more = __ldcg(sums + 32 * f);
      all[f].x += more.x, all[f].y += more.y, all[f].z += more.z, all[f].w += more.w;
    }
  }
  const Tensor& to = of_v ? x.dv : x.dk;
  const float scale = of_v ? 1.f : x.scale;
  const int key = tile * kSplitWarps * 16 + warp * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (key + 8 * half >= x.keys) continue;
    T* const row = view<T>(to).row(head_index / x.heads, key + 8 * half, head_index % x.heads);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const int at = column + f * 8 + lane % 4 * 2;
      const float4& sum = all[f];
      if (at < dim)
        *reinterpret_cast<uint32_t*>(row + at) = half ? sm80::pack<T>(sum.z * scale, sum.w * scale)
                                                      : sm80::pack<T>(sum.x * scale, sum.y * scale);
    }
  }
}

Status combine_dkdv(const cuda::Launcher&, const Problem&, const CombineDkDvParams&);

}  // namespace attune::sm90
