// SPDX-License-Identifier: Apache-2.0
// Two-kernel backward, the kernel that owns keys: dK and dV, for all query heads of the GQA group. The warpgroups have
// the same 64 keys and divide the gradients. Scores are transposed, rows are keys:
//   first   S^T = K Q^T -> P^T, in f32 through shared memory to the other; dV += P^T dO
//   second  dP^T = V dO^T, with P^T -> dS^T; dK += dS^T Q
// The results of the first products have the register layout that the second products need.
#pragma once
#include <cstddef>

#include "attention/sm90/backward/two_kernel/common.h"

namespace attune::sm90 {

// Tiles of q and d_out alternate in four buffers. Those of d_out are free sooner. So the q tile after the next goes
// where a d_out tile was, and vice versa, and both are loaded two products before they are needed.
template <class Number, int DimQk, int DimV, int TileQ = 64>
struct DkDvLayout {
  using T = Number;
  static constexpr int kDimQk = DimQk, kDimV = DimV, kTileQ = TileQ, kTileK = 64, kGroups = 2;
  static constexpr int kPlaces = 4, kStages = 2, kStatsStages = 4;  // of tiles; of P; of statistics
  static constexpr int kThreads = 128 * (1 + kGroups), kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kPanelsQk = DimQk / 64, kPanelsV = DimV / 64, kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanelsQk * kPanelQ, kBytesO = kPanelsV * kPanelQ, kBytesK = kPanelsQk * kPanelK;
  static constexpr int kBytesV = kPanelsV * kPanelK, kBytesStats = kTileQ * 8, kBytesP = kTileQ * kTileK * 4;
  static constexpr int kBytesTile = kBytesQ > kBytesO ? kBytesQ : kBytesO;
  static constexpr bool kKeepsKeys = DimQk <= 192 && DimV <= 192;  // in registers, if there is room
  // If two P do not fit, with a KB for barriers, the second one reuses the buffer of k.
  static constexpr bool kReusesKeys =
      kBytesK + kBytesV + kPlaces * kBytesTile + kStages * kBytesP + kStatsStages * kBytesStats > 226 * 1024;
  static_assert(!kReusesKeys || (kKeepsKeys && kBytesP <= kBytesK));
  struct Shared {
    char k[kBytesK], v[kBytesV], tiles[kPlaces][kBytesTile], p[kReusesKeys ? 1 : kStages][kBytesP];
    float2 stats[kStatsStages][kTileQ];
    Mbarrier k_full, v_full, done, full[kPlaces], empty[kPlaces], p_full[kStages], p_empty[kStages];
  };
  static constexpr int kK = offsetof(Shared, k), kV = offsetof(Shared, v), kTiles = offsetof(Shared, tiles);
  static constexpr int kP = offsetof(Shared, p), kStats = offsetof(Shared, stats), kSharedBytes = sizeof(Shared);
  static constexpr int kKFull = offsetof(Shared, k_full), kVFull = offsetof(Shared, v_full);
  static constexpr int kDone = offsetof(Shared, done);
  static constexpr int kFull = offsetof(Shared, full), kEmpty = offsetof(Shared, empty);
  static constexpr int kPFull = offsetof(Shared, p_full), kPEmpty = offsetof(Shared, p_empty);
  static constexpr uint32_t kStepP = uint32_t(kReusesKeys ? kK - kP : kBytesP);  // modulo 2^32
  // Buffers of q and of d_out of a step.
  static __device__ uint32_t q_place(uint32_t step) { return step % 2 * 2 + step / 2 % 2; }
  static __device__ uint32_t o_place(uint32_t step) { return step % 2 * 2 + (step / 2 % 2 ^ 1); }
  static_assert(kSharedBytes <= 227 * 1024);
};

// The keys of a CTA, and the query tiles that see them.
struct TwoKernelKeyTile {
  int key, head_kv, batch;
  int first, tiles;  // the first query of a head, a multiple of kTwoKernelStart; query tiles from there on
  template <class C>
  static __device__ TwoKernelKeyTile find(const TwoKernelParams& x) {
    const BlockPlace at = find_block(x.of_keys, int(blockIdx.x));
    TwoKernelKeyTile t{at.tile * C::kTileK, at.head % x.heads_kv, at.head / x.heads_kv, 0, 0};
    const int from = max(0, t.key - x.offset - x.right);
    const int last = min(x.rows, min(t.key + C::kTileK, x.keys) - x.offset + x.left) - 1;
    if (last < from) return t;
    t.first = from / kTwoKernelStart * kTwoKernelStart, t.tiles = (last - t.first) / C::kTileQ + 1;
    return t;
  }
};

template <class C>
__device__ inline void dkdv_produce(const TwoKernelParams& x, uint32_t shared, const TwoKernelKeyTile& t) {
  arrive_expect(shared + C::kKFull, C::kBytesK);
  load_panels<C::kTileK, C::kPanelsQk>(shared + C::kK, x.k, shared + C::kKFull, 0, t.key, t.head_kv, t.batch,
                                       Keep::first_to_go);
  uint32_t step = 0;
  for (int h = t.head_kv * x.group; h < (t.head_kv + 1) * x.group; ++h)
    for (int m = 0; m < t.tiles; ++m, ++step) {
      const int row = t.first + m * C::kTileQ;
      const uint32_t q = C::q_place(step), o = C::o_place(step), parity = (step / 2 & 1) ^ 1;
      const uint32_t q_full = shared + C::kFull + 8 * q, o_full = shared + C::kFull + 8 * o;
      wait(shared + C::kEmpty + 8 * q, parity);
      arrive_expect(q_full, C::kBytesQ + C::kBytesStats);
      load_panels<C::kTileQ, C::kPanelsQk, C::kTileQ>(shared + C::kTiles + q * C::kBytesTile, x.q, q_full, 0,
                                                      row, h, t.batch, Keep::last_to_go);
      load_tile(shared + C::kStats + step % C::kStatsStages * C::kBytesStats, x.stats, q_full, 2 * row, h, t.batch, 0,
                Keep::last_to_go);
      if (step == 0) {
        arrive_expect(shared + C::kVFull, C::kBytesV);
        load_panels<C::kTileK, C::kPanelsV>(shared + C::kV, x.v, shared + C::kVFull, 0, t.key, t.head_kv, t.batch,
                                            Keep::first_to_go);
      }
      wait(shared + C::kEmpty + 8 * o, parity);
      arrive_expect(o_full, C::kBytesO);
      load_panels<C::kTileQ, C::kPanelsV, C::kTileQ>(shared + C::kTiles + o * C::kBytesTile, x.d_out, o_full, 0,
                                                     row, h, t.batch, Keep::last_to_go);
    }
}

// One of the two warpgroups: `Values` has S^T and dV, the other dP^T and dK.
template <class C, bool Values>
struct DkDvConsumer {
  using T = typename C::T;
  static constexpr int kDimIn = Values ? C::kDimQk : C::kDimV, kDimOut = Values ? C::kDimV : C::kDimQk;
  static constexpr int kKeys = Values ? C::kK : C::kV;
  const TwoKernelParams& x;
  const uint32_t shared;
  const TwoKernelKeyTile& t;
  const int warp, lane;

  float sums[kDimOut / 2];
  float s[C::kTileQ / 2];
  uint32_t pairs[C::kTileQ / 4];                  // as operands of products
  uint32_t keys[C::kKeepsKeys ? kDimIn / 4 : 1];  // k, or v, likewise
  int query;                                      // of this step

  __device__ void release(int barrier) const {
    if (lane == 0) arrive(shared + barrier);
  }
  // Buffers of the tiles of the first product, and of the second.
  static __device__ uint32_t in_place(uint32_t n) { return Values ? C::q_place(n) : C::o_place(n); }
  static __device__ uint32_t out_place(uint32_t n) { return Values ? C::o_place(n) : C::q_place(n); }
  __device__ void wait_tile(uint32_t place, uint32_t n) const { wait(shared + C::kFull + 8 * place, n / 2 & 1); }

  __device__ void take_keys() {
    if constexpr (C::kKeepsKeys) keep_rows<C::kPanelK>(keys, shared + kKeys, warp * 16, lane);
  }
  __device__ void issue_scores(uint32_t n) {
    wait_tile(in_place(n), n);
    const uint32_t a = operand(shared + kKeys, 0), b = operand(shared + C::kTiles + in_place(n) * C::kBytesTile, 0);
    forget(s);
    begin_products();
#pragma unroll
    for (int i = 0; i < kDimIn / 16; ++i) {
      const uint32_t of_b = b + (i / 4 * C::kPanelQ + i % 4 * 32) / 16;
      if constexpr (C::kKeepsKeys) Product<T, C::kTileQ>::by_rows(s, keys + 4 * i, of_b, i > 0);
      else Product<T, C::kTileQ>::shared(s, a + (i / 4 * C::kPanelK + i % 4 * 32) / 16, of_b, i > 0);
    }
    close_products();
  }
  __device__ void issue_sums(uint32_t n) {
    const uint32_t b = operand(shared + C::kTiles + out_place(n) * C::kBytesTile, C::kPanelQ);
    if constexpr (Values) wait_tile(out_place(n), n);  // the other has waited for statistics, which come with q
    begin_products();
#pragma unroll
    for (int i = 0; i < C::kTileQ / 16; ++i)
      Product<T, kDimOut>::registers(sums, pairs + 4 * i, b + i * 16 * 128 / 16, 1);
    close_products();
  }
  __device__ bool edge() const {
    const int row = query + x.offset;
    return t.key + C::kTileK > x.keys || t.key + C::kTileK - 1 > row + x.right || t.key < row + C::kTileQ - 1 - x.left;
  }
  __device__ bool has_large_logits(uint32_t step) const {
    return has_lowered<C::kTileQ>(shared + C::kStats + step % C::kStatsStages * C::kBytesStats);
  }
  __device__ void hide() {
    const int key = t.key + warp * 16 + lane / 4, row = query + x.offset + lane % 4 * 2;
    int from[2], last[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      from[r] = key + 8 * r < x.keys ? key + 8 * r - x.right - row : C::kTileQ;
      last[r] = key + 8 * r + x.left - row;
    }
#pragma unroll
    for (int n = 0; n < C::kTileQ / 2; ++n) {
      const int c = n / 4 * 8 + n % 2, r = n / 2 % 2;
      if (c < from[r] || c > last[r]) s[n] = 0.f;
    }
  }
  // For two adjacent queries: log-sum-exp, delta, log-sum-exp, delta.
  __device__ float4 stats(uint32_t step, int n) const {
    return load_shared4(shared + C::kStats + step % C::kStatsStages * C::kBytesStats + lane % 4 * 16 + n * 64);
  }
  // Address where a lane exchanges P with the same lane of the other warpgroup.
  __device__ uint32_t exchange(uint32_t stage, int n) const {
    return shared + C::kP + stage * C::kStepP + n * 2048 + (warp * 32 + lane) * 16;
  }
  // Turns the scores of step n into pairs. The sums of the previous step are complete then. All threads hand P over,
  // not one per warp: racecheck tracks a barrier only for threads that arrive.
  template <bool First>
  __device__ void weigh(uint32_t n) {
    const uint32_t stage = n % C::kStages, parity = n / C::kStages & 1;
    const bool large_logits = Values && has_large_logits(n);
    wait_products<0>();
    pin(s), pin(sums);
    if constexpr (!First) release(C::kEmpty + 8 * out_place(n - 1));
    release(C::kEmpty + 8 * in_place(n));
    if constexpr (Values) {
#pragma unroll
      for (int i = 0; i < C::kTileQ / 8; ++i) {
        const float4 two = stats(n, i);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[4 * i + e] = sm80::exp2_fast(fmaf(s[4 * i + e], x.scale2, -(e % 2 ? two.z : two.x)));
      }
      if (large_logits) end_at_one(s);
      if (edge()) hide();
      wait(shared + C::kPEmpty + 8 * stage, parity ^ 1);
#pragma unroll
      for (int i = 0; i < C::kTileQ / 8; ++i)
        store_shared4(exchange(stage, i), s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
      arrive(shared + C::kPFull + 8 * stage);
    } else {
      wait_tile(out_place(n), n);
      wait(shared + C::kPFull + 8 * stage, parity);
#pragma unroll
      for (int i = 0; i < C::kTileQ / 8; ++i) {
        const float4 two = stats(n, i), p = load_shared4(exchange(stage, i));
        float* const y = s + 4 * i;
        y[0] = p.x * fmaf(y[0], x.kept, -two.y), y[1] = p.y * fmaf(y[1], x.kept, -two.w);
        y[2] = p.z * fmaf(y[2], x.kept, -two.y), y[3] = p.w * fmaf(y[3], x.kept, -two.w);
      }
      arrive(shared + C::kPEmpty + 8 * stage);
      if (edge()) hide();
    }
#pragma unroll
    for (int i = 0; i < C::kTileQ / 4; ++i) pairs[i] = sm80::pack<T>(s[2 * i], s[2 * i + 1]);
    query += C::kTileQ;
    if (query == t.first + t.tiles * C::kTileQ) query = t.first;
  }
  __device__ void run() {
    const uint32_t steps = uint32_t(t.tiles * x.group);
#pragma unroll
    for (int n = 0; n < kDimOut / 2; ++n) sums[n] = 0.f;
    if (steps > 0) {
      query = t.first;
      wait(shared + (Values ? C::kKFull : C::kVFull), 0);
      take_keys();
      pin(sums);
      issue_scores(0);
      if (!Values && steps > 1) named_arrive(kValuesMultiply, kConsumerThreads);
      weigh<true>(0);
#pragma unroll 1
      for (uint32_t n = 1; n < steps; ++n) {
        // Ping-pong: one multiplies while the other computes exponentials.
        named_sync(Values ? kValuesMultiply : kKeysMultiply, kConsumerThreads);
        issue_sums(n - 1);
        issue_scores(n);
        if (Values || n + 1 < steps) named_arrive(Values ? kKeysMultiply : kValuesMultiply, kConsumerThreads);
        weigh<false>(n);
      }
      issue_sums(steps - 1);
      wait_products<0>();
      pin(sums);
    }
    if constexpr (C::kReusesKeys) arrive(shared + C::kDone);  // all threads, as for P
    else release(C::kDone);
    wait(shared + C::kDone, 0);  // the other has multiplied with the keys whose buffer this one takes
    if (Values ? x.wants_dv : x.wants_dk)
      store_warp_rows<T, C::kTileK>(sums, Values ? 1.f : x.scale, shared + (Values ? C::kV : C::kK), warp * 16,
                                    Values ? x.dv : x.dk, t.key + warp * 16, t.head_kv, t.batch);
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) dkdv_kernel(const __grid_constant__ TwoKernelParams x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    barrier_init(shared + C::kKFull, 1), barrier_init(shared + C::kVFull, 1);
    barrier_init(shared + C::kDone, (C::kReusesKeys ? 128 : 4) * C::kGroups);
    for (int n = 0; n < C::kPlaces; ++n)
      barrier_init(shared + C::kFull + 8 * n, 1), barrier_init(shared + C::kEmpty + 8 * n, 4 * C::kGroups);
    for (int n = 0; n < C::kStages; ++n)
      barrier_init(shared + C::kPFull + 8 * n, 128), barrier_init(shared + C::kPEmpty + 8 * n, 128);
    barrier_init_done();
  }
  __syncthreads();
  // The kernel that owns queries started when the statistics were ready, and this kernel needs none of its results. It
  // is waited for at the end, so that the next kernel finds all gradients.
  if (x.alone) sm80::wait_for_previous();
  const TwoKernelKeyTile t = TwoKernelKeyTile::find<C>(x);
  if (group == kProducerGroup) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == kLoader && t.tiles > 0) dkdv_produce<C>(x, shared, t);
  } else {
    grow_registers<C::kConsumerRegisters>();
    if (group == kFirstConsumer) {
      DkDvConsumer<C, true> consumer{x, shared, t, warp, int(threadIdx.x % 32)};
      consumer.run();
    } else {
      DkDvConsumer<C, false> consumer{x, shared, t, warp, int(threadIdx.x % 32)};
      consumer.run();
    }
  }
  sm80::wait_for_previous();
  sm80::admit_next();
}

}  // namespace attune::sm90
