// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: how dK and dV leave the registers of a warpgroup. They go through shared memory by
// TMA, as f32 straight from registers, or as partial sums of head splits and query splits.
#pragma once
#include "attention/sm90/backward/config.h"
#include "machine/sm80/mma.h"
#include "machine/sm80/memory.h"
#include "machine/sm80/dependent_launch.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/tma.h"

namespace attune::sm90 {

// For one warp: 16 rows of the 64 keys that its warpgroup owns.
template <class C>
struct KeyGradients {
  using T = typename C::T;
  const typename C::Params& x;
  const uint32_t shared;
  const KeyTile& t;
  const int group, warp, lane;

  // Without a table both are always requested: ptxas then schedules the loop before this test better, by 4 % of the
  // time.
  __device__ bool wants_dk() const {
    if constexpr (C::kTabled) return x.has_dk;
    return true;
  }
  __device__ bool wants_dv() const {
    if constexpr (C::kTabled) return x.has_dv;
    return true;
  }
  // The deterministic kernel tests this although it is always true: otherwise ptxas 13.0 adds an arrive between
  // products of dV at d128 (C7519).
  __device__ bool stores_split() const {
    if constexpr (C::kHeadSplits && C::kDeterministic) return x.sums != nullptr;
    return C::kHeadSplits;
  }
  // Stores the sums in register order: other CTAs have other heads of these keys.
  __device__ void store_split(const float (&of_k)[C::kDim / 2], const float (&of_v)[C::kDim / 2]) const {
    leave(x.sums, (int64_t(t.batch) * x.heads_kv + t.head) * x.tiles + t.number, of_k, of_v);
  }
  __device__ void leave(float4* sums, int64_t split, const float (&of_k)[C::kDim / 2],
                        const float (&of_v)[C::kDim / 2]) const {
    static_assert(C::kTileK == kSplitWarps * 16);
    float4* const to_k = sums + sums_offset(C::kDim, split, group * 4 + warp, false) + lane;
    float4* const to_v = sums + sums_offset(C::kDim, split, group * 4 + warp, true) + lane;
#pragma unroll
    for (int n = 0; n < C::kDim / 8; ++n) {
      to_k[32 * n] = {of_k[4 * n], of_k[4 * n + 1], of_k[4 * n + 2], of_k[4 * n + 3]};
      to_v[32 * n] = {of_v[4 * n], of_v[4 * n + 1], of_v[4 * n + 2], of_v[4 * n + 3]};
    }
  }
  // Stores the sums of a query split. The last split of a tile replaces its sums by those of the tile, added in the
  // order of splits, and returns true. n: index among the launch's tiles and splits; a tile that is not divided returns
  // true.
  __device__ bool combine_query_splits(int n, float (&of_k)[C::kDim / 2], float (&of_v)[C::kDim / 2]) const {
    n -= x.query_splits.begin;
    if (uint32_t(n) >= uint32_t(x.query_splits.divided * x.query_splits.each)) return true;
    leave(x.query_splits.sums, n, of_k, of_v);
    const int tile = n / x.query_splits.each;
    __syncwarp();
    int before = 0;
    if (lane == 0) before = sm80::next_count(x.query_splits.arrived + tile * kSplitWarps + group * 4 + warp);
    if (__shfl_sync(~0u, before, 0) + 1 < x.query_splits.each) return false;
    __syncwarp();
    add_up(false, tile, of_k);
    add_up(true, tile, of_v);
    return true;
  }
  __device__ void add_up(bool v, int tile, float (&sums)[C::kDim / 2]) const {
#pragma unroll
    for (float& sum : sums) sum = 0.f;
#pragma unroll 1
    for (int split = 0; split < x.query_splits.each; ++split) {
      const int64_t slot = int64_t(tile) * x.query_splits.each + split;
      const float4* const from = x.query_splits.sums + sums_offset(C::kDim, slot, group * 4 + warp, v) + lane;
#pragma unroll
      for (int n = 0; n < C::kDim / 8; ++n) {
        const float4 more = __ldcg(from + 32 * n);
        sums[4 * n] += more.x, sums[4 * n + 1] += more.y, sums[4 * n + 2] += more.z, sums[4 * n + 3] += more.w;
      }
    }
  }
  // Writes a warp's 16 rows to shared memory, in panels of 64 columns.
  __device__ void stage(const float (&sums)[C::kDim / 2], float factor, uint32_t to, int panel) const {
    const int r = lane % 16, half = lane / 16;
#pragma unroll
    for (int n = 0; n < C::kDim / 16; ++n) {
      const float* y = sums + 8 * n;
      store_matrix4(to + n / 4 * panel + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4),
                    sm80::pack<T>(y[0] * factor, y[1] * factor), sm80::pack<T>(y[2] * factor, y[3] * factor),
                    sm80::pack<T>(y[4] * factor, y[5] * factor), sm80::pack<T>(y[6] * factor, y[7] * factor));
    }
  }
  __device__ void store_gradient(const float (&sums)[C::kDim / 2], float factor, int place, bool of_v) const {
    if constexpr (C::kTabled) {
      const F32Rows& f32 = of_v ? x.f32_dv : x.f32_dk;
      if (f32.data) return store_f32(sums, factor, f32, of_v ? x.dim_v : x.dim_qk);
    }
    store(sums, factor, place, of_v);
  }
  // Stores f32 straight from registers.
  __device__ void store_f32(const float (&sums)[C::kDim / 2], float factor, const F32Rows& to, int dim) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = t.key + group * 64 + warp * 16 + lane / 4 + 8 * r;
      if (key >= t.keys) continue;
      float* const row = to.data + t.k_batch * to.batch + int64_t(t.k_row + key) * to.seq + t.head * to.head;
#pragma unroll
      for (int n = 0; n < C::kDim / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= dim) continue;
        float2* const at = reinterpret_cast<float2*>(row + column);
        const float2 was = x.accumulate ? *at : float2{0.f, 0.f};
        *at = {fmaf(sums[4 * n + 2 * r], factor, was.x), fmaf(sums[4 * n + 2 * r + 1], factor, was.y)};
      }
    }
  }
  // Each warp stores its 16 rows through the buffer of its own keys.
  __device__ void store(const float (&sums)[C::kDim / 2], float factor, int place, bool of_v) const {
    const int first = group * 64 + warp * 16, r = first + lane % 16, half = lane / 16;
#pragma unroll
    for (int n = 0; n < C::kDim / 16; ++n) {
      const float* y = sums + 8 * n;
      store_matrix4(shared + place + n / 4 * C::kPanelK + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4),
                    sm80::pack<T>(y[0] * factor, y[1] * factor), sm80::pack<T>(y[2] * factor, y[3] * factor),
                    sm80::pack<T>(y[4] * factor, y[5] * factor), sm80::pack<T>(y[6] * factor, y[7] * factor));
    }
    send(place, of_v);
  }
  // Rows past the end of a sequence may belong to another: there rows leave one by one.
  __device__ void send(int place, bool of_v) const {
    const int first = group * 64 + warp * 16;
    publish_shared();
    __syncwarp();
    if (lane > 0) return;
    if (!send_end(place, of_v))
#pragma unroll
      for (int n = 0; n < C::kPanels; ++n)
        store_tile(of_v ? x.dv : x.dk, shared + place + n * C::kPanelK + first * 128, n * 64, t.k_row + t.key + first,
                   t.head, t.k_batch);
    close_stores();
  }
  __device__ bool send_end(int place, bool of_v) const {
    if constexpr (C::kTabled) {
      const int first = group * 64 + warp * 16, there = t.keys - t.key - first;
      if (there >= 16 || t.k_row + t.keys >= x.rows_k) return false;
#pragma unroll 1
      for (int r = 0; r < there; ++r)
#pragma unroll 1
        for (int n = 0; n < C::kPanels; ++n)
          store_tile(of_v ? x.dv_row : x.dk_row, shared + place + n * C::kPanelK + (first + r) * 128, n * 64,
                     t.k_row + t.key + first + r, t.head, t.k_batch);
      return true;
    }
    return false;
  }
  // For keys that no query sees.
  __device__ void clear() const {
    if (stores_split()) {
      const float nothing[C::kDim / 2] = {};
      return store_split(nothing, nothing);
    }
    if constexpr (C::kTabled)
      if (x.f32_dk.data || x.f32_dv.data) {
        if (x.accumulate) return;
        const float nothing[C::kDim / 2] = {};
        if (wants_dv()) store_f32(nothing, 1.f, x.f32_dv, x.dim_v);
        if (wants_dk()) store_f32(nothing, 1.f, x.f32_dk, x.dim_qk);
        return;
      }
#pragma unroll
    for (int n = 0; n < C::kPanels * 4; ++n)
      store_shared4(shared + C::kK + n / 4 * C::kPanelK + (group * 64 + warp * 16) * 128 + n % 4 * 512 + lane * 16,
                    0.f, 0.f, 0.f, 0.f);
    if (wants_dv()) send(C::kK, true);
    if (wants_dk()) send(C::kK, false);
    if (lane == 0) wait_stores();
  }
};

}  // namespace attune::sm90
