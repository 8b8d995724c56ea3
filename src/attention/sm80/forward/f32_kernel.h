// SPDX-License-Identifier: Apache-2.0
// Forward attention in f32 by mma.sync on tf32, for every GPU from sm_80 on.
//   load q -> for each key tile: wait k, load v; scores, hide, admit; wait v, load next k; accumulate -> store
// It follows the 16-bit kernel without split-KV and packed heads. Tiles fit in 99 KB of shared memory, so one kernel
// per width and precision serves all GPUs. The bits of a row do not depend on the rest of its tile or batch.
#pragma once
#include <cstddef>

#include "attention/sm80/f32.h"

namespace attune::sm80 {

// Compile-time configuration. `three`: tf32x3, three tf32 products per product, as exact as f32.
struct ForwardF32Config {
  int dim, tile_q, tile_k, warps;
};

template <ForwardF32Config C, bool three>
struct ForwardF32 {
  static constexpr int kDim = C.dim, kTileQ = C.tile_q, kTileK = C.tile_k, kWarps = C.warps;
  static constexpr int kThreads = kWarps * 32, kRowsOfWarp = kTileQ / kWarps, kM = kRowsOfWarp / 16, kN = kTileK / 8;
  static_assert(kRowsOfWarp % 16 == 0 && kTileK % 16 == 0);
  static constexpr float kLazy = 8.f;  // a row's reference moves only when its maximum grew by more than 2^kLazy
  using TileOfQ = FloatTile<kTileQ, kDim>;
  using TileOfK = FloatTile<kTileK, kDim>;
  using Place = QueryRows<kTileQ, kTileK>;
  struct Shared {
    char q[TileOfQ::kBytes], k[TileOfK::kBytes], v[TileOfK::kBytes];
  };
  static constexpr int kK = offsetof(Shared, k), kV = offsetof(Shared, v), kSharedBytes = sizeof(Shared);

  const F32Call& x;
  const Problem& p;
  const DenseArgs& a;
  const int lane, warp;
  const uint32_t q_shared, k_shared, v_shared;
  Place& at;
  int2* const seen;  // [kTileQ]: keys that each row sees
  Accumulator o[kM][kDim / 8];
  float ref[kM][2], sum[kM][2];

  __device__ ForwardF32(const F32Call& call, char* shared, Place& place, int2* seen_keys)
      : x(call),
        p(call.problem),
        a(call.args),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        q_shared(shared_address(shared)),
        k_shared(q_shared + kK),
        v_shared(k_shared + (kV - kK)),
        at(place),
        seen(seen_keys) {}

  // Row of the CTA that this thread's accumulators hold, for fragment m and half 0 or 1.
  __device__ int row_of(int m, int half) const { return warp * kRowsOfWarp + m * 16 + half * 8 + lane / 4; }
  __device__ void load(Role role, uint32_t tile, const Tile& t) const {
    load_keys<TileOfK, kThreads>(x, role, at.seq, at.b, at.head_kv, t.first, t.last - t.first, tile);
  }

  // Converts dot products to logits in base 2; -inf where a row does not see a key.
  __device__ void hide(Accumulator (&s)[kM * kN], const Tile& t) const {
    if (x.options) {
      General score(p, a, at.seq, at.b, at.head);
      if (const Blocks size = p.mask.blocks; score.block_bias)
        score.entry = max(0, at.list(x).find(at.first / size.q, t.first / size.k));
      each_rotating<kM * kN>(
          [&](int n, int e) {
            const int row = row_of(n / kN, e / 2), j = t.first + n % kN * 8 + lane % 4 * 2 + e % 2;
            const bool hidden = j < seen[row].x || j >= min(seen[row].y, t.last);
            s[0].c[0] = hidden ? -INFINITY : score.logit(s[0].c[0], at.first + row, j);
          },
          s);
      return;
    }
    const float scale = scale_of(p, a) * kLog2e;
#pragma unroll
    for (int n = 0; n < kM * kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n].c[e] *= scale;
    if (!t.partial) return;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 keys = seen[row_of(m, half)];
        const int column = t.first + lane % 4 * 2, from = keys.x - column, until = min(keys.y, t.last) - column;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (n * 8 + e < from || n * 8 + e >= until) s[m * kN + n].c[2 * half + e] = -INFINITY;
      }
  }

  // Online softmax: updates references and sums, replaces s by p, and rescales o only where a reference moved.
  __device__ void admit(Accumulator (&s)[kM * kN]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(s[m * kN + n].c[2 * half], s[m * kN + n].c[2 * half + 1]));
        top = row_max(top);
        const float before = ref[m][half];
        const bool grew = top > before + kLazy;
        ref[m][half] = grew ? top : before;
        factor[half] = grew ? exp2_fast(before - top) : 1.f;
        const float shift = ref[m][half] == -INFINITY ? 0.f : ref[m][half];
        float total = 0.f;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m * kN + n].c[e] = exp2_fast(__fsub_rn(s[m * kN + n].c[e], shift));  // not fused with scaling
            total += s[m * kN + n].c[e];
          }
        sum[m][half] = sum[m][half] * factor[half] + total;
      }
      if (__any_sync(~0u, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
        for (int d = 0; d < kDim / 8; ++d)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[m][d].c[e] *= factor[e / 2];
      }
    }
  }

  __device__ void drop(Accumulator (&s)[kM * kN], const Tile& t) const {
    const General score(p, a, at.seq, at.b, at.head);
    each_rotating<kM * kN>(
        [&](int n, int e) {
          s[0].c[0] *= score.keep(at.first + row_of(n / kN, e / 2), t.first + n % kN * 8 + lane % 4 * 2 + e % 2);
        },
        s);
  }

  __device__ void run() {
    load_queries<TileOfQ, kThreads>(x, Role::q, at.seq, at.head, at.first, at.rows, q_shared);
    if (at.tiles > 0) load(Role::k, k_shared, at.tile(x, at.tiles - 1));
    close_group();
    for (int r = threadIdx.x; r < kTileQ; r += kThreads) seen[r] = at.seen(min(r, at.rows - 1));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) ref[m][half] = -INFINITY, sum[m][half] = 0.f;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) o[m][d] = {};
    }
    wait_groups<0>();
    round_loaded<three, TileOfQ, kThreads>(q_shared);
    for (int n = at.tiles - 1; n >= 0; --n) {
      const Tile t = at.tile(x, n);
      wait_groups<0>();
      __syncthreads();
      load(Role::v, v_shared, t);
      close_group();
      Accumulator s[kM * kN];
      dot_rows<three, TilePair<TileOfQ, TileOfK>, kM, kN>(s, q_shared, k_shared, warp * kRowsOfWarp, lane);
      hide(s, t);
      admit(s);
      if (p.has(Option::dropout)) drop(s, t);
      wait_groups<0>();
      __syncthreads();
      if (n > 0) load(Role::k, k_shared, at.tile(x, n - 1));
      close_group();
      add_rows<three, TileOfK, kM, kN>(o, s, v_shared, lane);
    }
    wait_groups<0>();
    store();
  }

  __device__ void store() const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        const int64_t token = at.seq.q_first + int64_t(at.first + row);
        const float total = row_sum(sum[m][half]);
        float now = 0.f, before = 0.f;
        if (lane % 4 == 0 && row < at.rows) {  // one lane per row reads and writes the running lse
          RowEnd end(SoftmaxRow{ref[m][half], total});
          float* lse = a.row<float>(Role::lse, at.seq.q_batch, token, at.head);
          if (p.has(Option::accumulate)) end.merge_running(*lse);
          if (p.has(Option::sink)) end.merge_sink(*a.row<const float>(Role::sinks, 0, 0, at.head));
          if (lse) *lse = end.lse;
          now = end.now, before = end.before;
        }
        now = __shfl_sync(~0u, now, lane / 4 * 4), before = __shfl_sync(~0u, before, lane / 4 * 4);
        if (row >= at.rows) continue;
        float* to = a.row<float>(Role::out, at.seq.q_batch, token, at.head);
#pragma unroll
        for (int d = 0; d < kDim / 8; ++d)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (const int column = d * 8 + lane % 4 * 2 + e; column < p.dim_v)
              to[column] = o[m][d].c[2 * half + e] * now + (before == 0.f ? 0.f : to[column] * before);
      }
  }
};

template <class F>
__global__ void __launch_bounds__(F::kThreads, 2) forward_f32_kernel(const __grid_constant__ F32Call call) {
  extern __shared__ __align__(128) char shared[];
  __shared__ typename F::Place place;
  __shared__ int2 seen[F::kTileQ];
  if (threadIdx.x == 0) place.find(call);
  __syncthreads();
  if (place.rows > 0) F(call, shared, place, seen).run();
}

}  // namespace attune::sm80
