// SPDX-License-Identifier: Apache-2.0
// dQ of selected attention. It uses the walk of the forward, so one warp sums the rows of a token in the order of its
// list, without atomics.
//   load q, dO -> for each tile of the walk that this warp's tokens chose: S, dP, dS; dQ += dS K -> store
#pragma once
#include "attention/sm80/nsa/selected_instances.h"
#include "attention/sm80/tile_product.h"
#include "core/large_logit.h"

namespace attune::sm80 {

template <class T, SelectedConfig C>
struct SelectedRows {
  static constexpr int kDim = C.dim, kDimV = C.dim_v, kTileK = C.tile_k, kWarps = C.warps;
  using Walk = SelectedWalk<T, C>;
  using TileOfQ = SharedTile<Walk::kRows, kDim>;
  using TileOfO = SharedTile<Walk::kRows, kDimV>;
  using TileOfK = typename Walk::TileOfK;
  using TileOfV = typename Walk::TileOfV;
  // Dynamic shared memory: the rows, the stages of K and V, then the lists. A call decides how many stages there are.
  struct Rows {
    char q[TileOfQ::kBytes], d_out[TileOfO::kBytes];
  };
  static constexpr int kO = offsetof(Rows, d_out), kFixedBytes = sizeof(Rows), kStageBytes = Walk::kStageBytes;
  static constexpr int kStepK = kTileK < 32 || kDim > 128 ? 16 : 32;  // keys at once

  const SelectedParams& x;
  const Walk& walk;
  const int lane, warp;
  const uint32_t q_shared, o_shared;
  Accumulator dq[kDim / 8];

  __device__ SelectedRows(const Walk& w, uint32_t shared)
      : x(w.x), walk(w), lane(threadIdx.x % 32), warp(threadIdx.x / 32), q_shared(shared),
        o_shared(shared + kO) {}

  __device__ int row_of(int half) const { return warp * 16 + half * 8 + lane / 4; }

  // Handles keys [first, first + kStepK) of the tile.
  __device__ void compute(int first, int stage, const float2 (&end)[2]) {
    Accumulator s[kStepK / 8], dp[kStepK / 8];
    multiply_tiles<T, TileOfQ, TileOfK>(s, q_shared, walk.k_shared(stage) + first * 128, warp, lane);
    multiply_tiles<T, TileOfO, TileOfV>(dp, o_shared, walk.v_shared(stage) + first * 128, warp, lane);
    const SelectedTile& t = walk.shared.tile[stage];
    const int seen[2] = {walk.seen(t, row_of(0)) - first, walk.seen(t, row_of(1)) - first};
#pragma unroll
    for (int n = 0; n < kStepK / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n].c[e] = exp2_fast(fmaf(s[n].c[e], x.scale, -end[e / 2].x));
    if (is_lowered(end[0].x) || is_lowered(end[1].x)) {
#pragma unroll
      for (int n = 0; n < kStepK / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n].c[e] = weight_of_large_logit(s[n].c[e], end[e / 2].x);
    }
    uint32_t ds[kStepK / 8][2];
#pragma unroll
    for (int n = 0; n < kStepK / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          two[e] = s[n].c[2 * half + e] * (dp[n].c[2 * half + e] - end[half].y);
          if (n * 8 + lane % 4 * 2 + e >= seen[half]) two[e] = 0.f;
        }
        ds[n][half] = pack<T>(two[0], two[1]);
      }
    add_product<T, TileOfK>(dq, ds, walk.k_shared(stage) + first * 128, lane);
  }

  __device__ void run() {
    walk.template load_rows<TileOfQ>(q_shared, x.q, x.problem.dim_qk);
    walk.template load_rows<TileOfO>(o_shared, x.d_out, x.problem.dim_v);
    close_group();
    walk.find_rows();
    const SelectedPlace& at = walk.shared.at;
    float2 end[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      end[half] = {INFINITY, 0.f};
      if (const int row = row_of(half); row < at.rows)
        end[half] =
            x.row_stats[(int64_t(at.b) * x.problem.heads_q + walk.head_of(row)) * x.padded + walk.token_of(row)];
    }
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) dq[d] = {};
    wait_groups<0>();
    __syncwarp();
    walk.walk([&](const SelectedTile&, int stage) {
#pragma unroll 1
      for (int first = 0; first < kTileK; first += kStepK) compute(first, stage, end);
    });
    const float scale = x.scale * kLn2;  // without log2(e)
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) dq[d].c[e] *= scale;
    if (x.problem.dtype.grad != DType::f32)
      return walk.template store_narrow<kDim>(dq, q_shared, x.out, x.problem.dim_qk);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int row = row_of(half); row < at.rows)
        Walk::template store_f32<kDim>(dq, half, reinterpret_cast<float*>(walk.row_at(x.out, row)), x.problem.dim_qk);
  }
};

template <class S>
__global__ void __launch_bounds__(S::Walk::kThreads, 1)
    selected_dq_kernel(const __grid_constant__ SelectedParams params) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SelectedShared shared;
  run_selected<S>(params, memory, shared);
}

template <SelectedConfig C>
constexpr SelectedKernel dq_instance() {
  using F = SelectedRows<F16, C>;
  using B = SelectedRows<Bf16, C>;
  return selected_row<F>(selected_dq_kernel<F>, selected_dq_kernel<B>);
}

}  // namespace attune::sm80
