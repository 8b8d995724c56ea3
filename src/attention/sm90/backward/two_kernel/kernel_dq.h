// SPDX-License-Identifier: Apache-2.0
// Two-kernel backward, the kernel that owns queries: dQ. Each of two warpgroups has 64 queries and exchanges nothing
// with the other:
//   S = Q K^T | dP = dO V^T | P and dS in registers | dQ += dS K, and only then the next key tile
// So k is loaded a whole step ahead, and one warpgroup multiplies while the other computes exponentials. Q and dO stay
// in shared memory, which leaves three tiles at d256: two of k, and one of v that is released in halves.
#pragma once
#include <cstddef>

#include "attention/sm90/backward/two_kernel/common.h"

namespace attune::sm90 {

template <class Number, int DimQk, int DimV, int TileK = 64>
struct DqLayout {
  using T = Number;
  static constexpr int kDimQk = DimQk, kDimV = DimV, kTileQ = 128, kTileK = TileK, kGroups = 2, kWarps = 4 * kGroups;
  static constexpr int kThreads = 128 * (1 + kGroups), kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kPanelsQk = DimQk / 64, kPanelsV = DimV / 64, kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kVSlices = DimV == 256 ? 2 : 1, kPanelsSlice = kPanelsV / kVSlices;  // of a v tile; of one slice
  static constexpr int kStagesK = 2, kStagesV = 2;  // of k tiles; of slices
  static constexpr int kBytesQ = kPanelsQk * kPanelQ, kBytesO = kPanelsV * kPanelQ, kBytesK = kPanelsQk * kPanelK;
  static constexpr int kBytesV = kPanelsSlice * kPanelK;
  struct Shared {
    char q[kBytesQ], d_out[kBytesO], k[kStagesK][kBytesK], v[kStagesV][kBytesV];
    Mbarrier q_full, o_full, q_empty, o_empty;
    Mbarrier k_full[kStagesK], k_empty[kStagesK], v_full[kStagesV], v_empty[kStagesV];
  };
  static constexpr int kQ = offsetof(Shared, q), kO = offsetof(Shared, d_out), kK = offsetof(Shared, k);
  static constexpr int kV = offsetof(Shared, v), kSharedBytes = sizeof(Shared);
  static constexpr int kQFull = offsetof(Shared, q_full), kQEmpty = offsetof(Shared, q_empty);
  static constexpr int kOFull = offsetof(Shared, o_full), kOEmpty = offsetof(Shared, o_empty);
  static constexpr int kKFull = offsetof(Shared, k_full), kKEmpty = offsetof(Shared, k_empty);
  static constexpr int kVFull = offsetof(Shared, v_full), kVEmpty = offsetof(Shared, v_empty);
  static_assert(kSharedBytes <= 227 * 1024);
  static constexpr bool kKeepsRows = DimQk <= 192 && DimV <= 192;  // d_out in registers, if there is room
};

// The queries of a CTA, and the key tiles that they see. The last queries come first, which are the longest with a
// diagonal.
struct TwoKernelQueryTile {
  int query, head, batch;
  int first, tiles;  // the first key, a multiple of kTwoKernelStart; key tiles from there on
  template <class C>
  static __device__ TwoKernelQueryTile find(const TwoKernelParams& x, int n) {
    const BlockPlace at = find_block(x.of_rows, n);
    TwoKernelQueryTile t{(x.of_rows.tiles - 1 - at.tile) * C::kTileQ, at.head % x.heads, at.head / x.heads, 0, 0};
    const int from = max(0, t.query + x.offset - x.left);
    const int last = min(x.keys - 1, min(t.query + C::kTileQ, x.rows) - 1 + x.offset + x.right);
    if (last < from) return t;
    t.first = from / kTwoKernelStart * kTwoKernelStart, t.tiles = (last - t.first) / C::kTileK + 1;
    return t;
  }
};

template <class C>
__device__ inline void dq_produce(const TwoKernelParams& x, uint32_t shared, const TwoKernelQueryTile& t,
                                  uint32_t round, uint32_t step) {
  const int head_kv = t.head / x.group;
  const uint32_t q = shared + C::kQFull, o = shared + C::kOFull;
  uint32_t slice = step * C::kVSlices;
  const auto load_k = [&](uint32_t n) {
    const uint32_t stage = (step + n) % C::kStagesK, full = shared + C::kKFull + 8 * stage;
    wait(shared + C::kKEmpty + 8 * stage, ((step + n) / C::kStagesK & 1) ^ 1);
    arrive_expect(full, C::kBytesK);
    load_panels<C::kTileK, C::kPanelsQk, C::kTileK>(shared + C::kK + stage * C::kBytesK, x.k, full, 0,
                                                    t.first + int(n) * C::kTileK, head_kv, t.batch,
                                                    Keep::last_to_go);
  };
  wait(shared + C::kQEmpty, (round & 1) ^ 1);
  arrive_expect(q, C::kBytesQ);
  load_panels<C::kTileQ, C::kPanelsQk>(shared + C::kQ, x.q, q, 0, t.query, t.head, t.batch, Keep::first_to_go);
  load_k(0);
  wait(shared + C::kOEmpty, (round & 1) ^ 1);
  arrive_expect(o, C::kBytesO);
  load_panels<C::kTileQ, C::kPanelsV>(shared + C::kO, x.d_out, o, 0, t.query, t.head, t.batch, Keep::first_to_go);
  for (uint32_t n = 0; n < uint32_t(t.tiles); ++n) {
    if (n > 0) load_k(n);
#pragma unroll 1
    for (int p = 0; p < C::kVSlices; ++p, ++slice) {
      const uint32_t stage = slice % C::kStagesV, full = shared + C::kVFull + 8 * stage;
      wait(shared + C::kVEmpty + 8 * stage, (slice / C::kStagesV & 1) ^ 1);
      arrive_expect(full, C::kBytesV);
      load_panels<C::kTileK, C::kPanelsSlice, C::kTileK>(shared + C::kV + stage * C::kBytesV, x.v, full,
                                                         p * C::kPanelsSlice, t.first + int(n) * C::kTileK, head_kv,
                                                         t.batch, Keep::last_to_go);
    }
  }
}

template <class C>
struct DqConsumer {
  using T = typename C::T;
  const TwoKernelParams& x;
  const uint32_t shared;
  const int group, warp, lane;
  TwoKernelQueryTile t;
  uint32_t round, start;  // index of this tile and of its first step in the CTA

  float dq[C::kDimQk / 2];
  float s[C::kTileK / 2], dp[C::kTileK / 2];
  uint32_t ds[C::kTileK / 4];                        // pairs, as operands of products
  uint32_t d_out[C::kKeepsRows ? C::kDimV / 4 : 1];  // likewise
  float lse[2], delta[2];                            // of this lane's rows
  bool large_logits;                                 // in some row of the warp

  __device__ void release(int barrier) const {
    if (lane == 0) arrive(shared + barrier);
  }
  // Steps are counted over all tiles of the CTA.
  __device__ void issue_scores(uint32_t n) {
    const uint32_t stage = n % C::kStagesK;
    wait(shared + C::kKFull + 8 * stage, n / C::kStagesK & 1);
    const uint32_t a = operand(shared + C::kQ + group * 64 * 128, 0);
    const uint32_t b = operand(shared + C::kK + stage * C::kBytesK, 0);
    forget(s);
    begin_products();
#pragma unroll
    for (int i = 0; i < C::kDimQk / 16; ++i)
      Product<T, C::kTileK>::shared(s, a + (i / 4 * C::kPanelQ + i % 4 * 32) / 16,
                                    b + (i / 4 * C::kPanelK + i % 4 * 32) / 16, i > 0);
    close_products();
    if (n == start) {
      wait(shared + C::kOFull, round & 1);
      if constexpr (C::kKeepsRows) keep_rows<C::kPanelQ>(d_out, shared + C::kO, group * 64 + warp * 16, lane);
    }
    const uint32_t c = operand(shared + C::kO + group * 64 * 128, 0);
    forget(dp);
#pragma unroll
    for (int p = 0; p < C::kVSlices; ++p) {
      const uint32_t slice = n * C::kVSlices + p, at = slice % C::kStagesV;
      wait(shared + C::kVFull + 8 * at, slice / C::kStagesV & 1);
      const uint32_t d = operand(shared + C::kV + at * C::kBytesV, 0);
      begin_products();
#pragma unroll
      for (int i = 0; i < C::kPanelsSlice * 4; ++i) {
        const uint32_t of_a = c + ((p * C::kPanelsSlice + i / 4) * C::kPanelQ + i % 4 * 32) / 16;
        const uint32_t of_b = d + (i / 4 * C::kPanelK + i % 4 * 32) / 16;
        if constexpr (C::kKeepsRows) Product<T, C::kTileK>::by_rows(dp, d_out + 4 * i, of_b, i > 0);
        else Product<T, C::kTileK>::shared(dp, of_a, of_b, p + i > 0);
      }
      close_products();
    }
  }
  __device__ void issue_dq(uint32_t n) {
    const uint32_t b = operand(shared + C::kK + n % C::kStagesK * C::kBytesK, C::kPanelK);
    begin_products();
#pragma unroll
    for (int i = 0; i < C::kTileK / 16; ++i) Product<T, C::kDimQk>::registers(dq, ds + 4 * i, b + i * 16 * 128 / 16, 1);
    close_products();
  }
  __device__ bool has_large_logits() const { return __any_sync(~0u, is_lowered(lse[0]) || is_lowered(lse[1])); }
  __device__ void hide(float (&to)[C::kTileK / 2], int key) const {
    const int row = t.query + group * 64 + warp * 16 + lane / 4 + x.offset;
    const int first = key + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < C::kTileK / 2; ++n) {
      const int c = first + n / 4 * 8 + n % 2, r = row + n / 2 % 2 * 8;
      if (c < r - x.left || c > r + x.right || c >= x.keys) to[n] = 0.f;
    }
  }
  // Turns the scores of key tile n into dS, in pairs.
  __device__ void differentiate(uint32_t n) {
    const int key = t.first + int(n - start) * C::kTileK, row = t.query + group * 64 + x.offset;
    const bool partial = key + C::kTileK > x.keys || key + C::kTileK - 1 > row + x.right || key < row + 63 - x.left;
    wait_products<C::kVSlices>();
    pin(s);
#pragma unroll
    for (int i = 0; i < C::kTileK / 2; ++i) s[i] = sm80::exp2_fast(fmaf(s[i], x.scale2, -lse[i / 2 % 2]));
    if (large_logits) end_at_one(s);
    if (partial) hide(s, key);
    if constexpr (C::kVSlices == 2) {
      wait_products<1>();
      release(C::kVEmpty + 8 * (n * 2 % C::kStagesV));
    }
    wait_products<0>();
    pin(dp);
    release(C::kVEmpty + 8 * ((n * C::kVSlices + C::kVSlices - 1) % C::kStagesV));
#pragma unroll
    for (int i = 0; i < C::kTileK / 2; ++i) dp[i] = s[i] * fmaf(dp[i], x.kept, -delta[i / 2 % 2]);
    if (partial) hide(dp, key);
#pragma unroll
    for (int i = 0; i < C::kTileK / 4; ++i) ds[i] = sm80::pack<T>(dp[2 * i], dp[2 * i + 1]);
  }
  __device__ void run() {
    const int first = group * 64 + warp * 16;
#pragma unroll
    for (int n = 0; n < C::kDimQk / 2; ++n) dq[n] = 0.f;
    if (t.tiles > 0) {
      const float2* stats = x.row_stats + (int64_t(t.batch) * x.heads + t.head) * x.padded + t.query + first + lane / 4;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 one = stats[8 * r];
        lse[r] = one.x, delta[r] = one.y;
      }
      large_logits = has_large_logits();
      wait(shared + C::kQFull, round & 1);
      const uint32_t end = start + uint32_t(t.tiles);
#pragma unroll 1
      for (uint32_t n = start; n < end; ++n) {
        pin(dq);
        issue_scores(n);
        differentiate(n);
        issue_dq(n);
        wait_products<0>();
        pin(dq);
        release(C::kKEmpty + 8 * (n % C::kStagesK));
      }
      release(C::kOEmpty);
    }
    store_warp_rows<T, C::kTileQ>(dq, x.scale, shared + C::kQ, first, x.dq, t.query + first, t.head, t.batch);
    release(C::kQEmpty);
  }
};

// If all tiles are alike and short, CTAs are persistent and take every gridDim.x-th tile: data of the next one loads
// while dQ of this one leaves. Otherwise there is one CTA per tile.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) dq_kernel(const __grid_constant__ TwoKernelParams x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    barrier_init(shared + C::kQFull, 1), barrier_init(shared + C::kOFull, 1);
    barrier_init(shared + C::kQEmpty, C::kWarps), barrier_init(shared + C::kOEmpty, C::kWarps);
    for (int n = 0; n < C::kStagesK; ++n)
      barrier_init(shared + C::kKFull + 8 * n, 1), barrier_init(shared + C::kKEmpty + 8 * n, C::kWarps);
    for (int n = 0; n < C::kStagesV; ++n)
      barrier_init(shared + C::kVFull + 8 * n, 1), barrier_init(shared + C::kVEmpty + 8 * n, C::kWarps);
    barrier_init_done();
  }
  __syncthreads();
  sm80::wait_for_previous();
  sm80::admit_next();
  const int tiles = x.of_rows.tiles * x.of_rows.heads;
  uint32_t round = 0, step = 0;
  if (group == kProducerGroup) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x > kLoader) return;
#pragma unroll 1
    for (int n = int(blockIdx.x); n < tiles; n += int(gridDim.x), ++round) {
      const TwoKernelQueryTile t = TwoKernelQueryTile::find<C>(x, n);
      if (t.tiles > 0) dq_produce<C>(x, shared, t, round, step);
      step += uint32_t(t.tiles);
    }
  } else {
    grow_registers<C::kConsumerRegisters>();
    DqConsumer<C> consumer{x, shared, group - kFirstConsumer, warp, int(threadIdx.x % 32)};
#pragma unroll 1
    for (int n = int(blockIdx.x); n < tiles; n += int(gridDim.x), ++round) {
      consumer.t = TwoKernelQueryTile::find<C>(x, n), consumer.round = round, consumer.start = step;
      consumer.run();
      step += uint32_t(consumer.t.tiles);
    }
  }
}

}  // namespace attune::sm90
