// SPDX-License-Identifier: Apache-2.0
// Forward attention over a separate list of key blocks per token (NSA's selected branch), with mma.sync and cp.async,
// for every GPU from sm_80 on.
//   load q -> for each tile of the walk that this warp's tokens chose: scores, hide, admit; accumulate -> store
// A warp owns 16 rows (token, head of the group). With 16 heads per group that is one token, and a tile is used
// entirely or skipped. With fewer heads, a warp holds several tokens and masks a tile for those that did not choose it.
// The bits of a row depend on its own list alone: tiles masked for a row leave it unchanged.
#pragma once
#include "attention/sm80/nsa/selected_instances.h"
#include "attention/sm80/tile_steps.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm80 {

constexpr float kSelectedLazy = 8.f;  // a row's reference moves when its maximum grew by more than 2^8

template <class T, SelectedConfig C>
struct Selected {
  static constexpr int kDim = C.dim, kDimV = C.dim_v, kTileK = C.tile_k, kWarps = C.warps;
  using Walk = SelectedWalk<T, C>;
  using TileOfQ = SharedTile<Walk::kRows, kDim>;
  using TileOfK = typename Walk::TileOfK;
  using TileOfV = typename Walk::TileOfV;
  // Dynamic shared memory: the rows, the stages of K and V, then the lists. A call decides how many stages there are.
  struct Rows {
    char q[TileOfQ::kBytes];
  };
  static constexpr int kFixedBytes = sizeof(Rows), kStageBytes = Walk::kStageBytes;
  static constexpr int kAhead = 3;

  const SelectedParams& x;
  const Walk& walk;
  const int lane, warp;
  const uint32_t q_shared;
  Accumulator o[kDimV / 8];
  float ref[2], sum[2];

  __device__ Selected(const Walk& w, uint32_t q)
      : x(w.x), walk(w), lane(threadIdx.x % 32), warp(threadIdx.x / 32), q_shared(q) {}

  __device__ int row_of(int half) const { return warp * 16 + half * 8 + lane / 4; }

  // s = q k^T. Fragments of k are loaded ahead of the products that use them.
  __device__ void scores(Accumulator (&s)[kTileK / 8], uint32_t k_shared) const {
    constexpr int kPairs = kTileK / 16, kSteps = kDim / 16 * kPairs;
    const uint32_t q_first = q_shared + TileOfQ::offset(warp * 16 + lane % 16, lane / 16 * 8);
    const uint32_t k_first = k_shared + TileOfK::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    uint32_t keys[kAhead][4];
    FragmentA q[2];
    const auto load_k = [&](int step) {
      load_matrix4(keys[step % kAhead], TileOfK::further(k_first, step / kPairs * 16) + step % kPairs * 16 * 128);
    };
    load_matrix4(q[0].r, q_first);
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load_k(step);
#pragma unroll
    for (int n = 0; n < kTileK / 8; ++n) s[n] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int k = step / kPairs, n = step % kPairs * 2;
      if (n == 0 && k + 1 < kDim / 16) load_matrix4(q[(k + 1) % 2].r, TileOfQ::further(q_first, (k + 1) * 16));
      const uint32_t(&two)[4] = keys[step % kAhead];
      multiply_add<T>(s[n], q[k % 2], {two[0], two[1]});
      multiply_add<T>(s[n + 1], q[k % 2], {two[2], two[3]});
      if (step + kAhead < kSteps) load_k(step + kAhead);
    }
  }
  __device__ void hide(Accumulator (&s)[kTileK / 8], const int (&seen)[2]) const {
#pragma unroll
    for (int n = 0; n < kTileK / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (n * 8 + lane % 4 * 2 + e % 2 >= seen[e / 2]) s[n].c[e] = -INFINITY;
  }
  __device__ void admit(Accumulator (&s)[kTileK / 8]) { admit_tile(s, o, ref, sum, x.scale, kSelectedLazy); }
  __device__ void accumulate(const Accumulator (&s)[kTileK / 8], uint32_t v_shared) {
    add_values<ValueTile<T, TileOfV, kAhead>>(o, s, v_shared + TileOfV::offset(lane % 16, lane / 16 * 8));
  }

  __device__ void run() {
    walk.template load_rows<TileOfQ>(q_shared, x.q, x.problem.dim_qk);
    close_group();
    walk.find_rows();
    ref[0] = ref[1] = -INFINITY, sum[0] = sum[1] = 0.f;
#pragma unroll
    for (int d = 0; d < kDimV / 8; ++d) o[d] = {};
    wait_groups<0>();
    __syncwarp();
    walk.walk([&](const SelectedTile& t, int stage) {
      Accumulator s[kTileK / 8];
      scores(s, walk.k_shared(stage));
      const int seen[2] = {walk.seen(t, row_of(0)), walk.seen(t, row_of(1))};
      if (__any_sync(~0u, seen[0] < kTileK || seen[1] < kTileK)) hide(s, seen);
      admit(s);
      accumulate(s, walk.v_shared(stage));
    });
    store();
  }

  // Rows leave through the warp's rows of q, which are no longer needed.
  __device__ void store() {
    static_assert(kDimV <= kDim);
    const bool whole = x.splits.by == 1, f32 = !whole || x.problem.dtype.out == DType::f32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowEnd end(SoftmaxRow{ref[half], row_sum(sum[half])});
      const int row = row_of(half);
#pragma unroll
      for (int d = 0; d < kDimV / 8; ++d) o[d].c[2 * half] *= end.now, o[d].c[2 * half + 1] *= end.now;
      const SelectedPlace& at = walk.shared.at;
      if (row >= at.rows) continue;
      const int token = walk.token_of(row), head = walk.head_of(row);
      const int64_t partial = x.partial_row(at.split, at.b, head, token);
      if (lane % 4 == 0) {
        float* lse = whole ? x.args.row<float>(Role::lse, at.seq.q_batch, at.seq.q_first + int64_t(token), head)
                           : x.partial_lse + partial;
        if (lse) *lse = end.lse;
      }
      if (!f32) continue;
      float* to = whole ? reinterpret_cast<float*>(walk.row_at(x.out, row)) : x.partial_out + partial * x.problem.dim_v;
      Walk::template store_f32<kDimV>(o, half, to, x.problem.dim_v);
    }
    if (!f32) walk.template store_narrow<kDimV>(o, q_shared, x.out, x.problem.dim_v);
  }
};

template <class S>
__global__ void __launch_bounds__(S::Walk::kThreads, 1)
    selected_kernel(const __grid_constant__ SelectedParams params) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SelectedShared shared;
  admit_next();
  run_selected<S>(params, memory, shared);
}

template <SelectedConfig C>
constexpr SelectedKernel instance() {
  using F = Selected<F16, C>;
  using B = Selected<Bf16, C>;
  return selected_row<F>(selected_kernel<F>, selected_kernel<B>);
}

}  // namespace attune::sm80
