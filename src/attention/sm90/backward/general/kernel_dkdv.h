// SPDX-License-Identifier: Apache-2.0
// General backward, the kernel that owns keys: dK and dV, for all query heads of the GQA group. A CTA has one tile of
// 64 keys from the table. The producer thread stores the location of each query tile beside it, and a query of -1 at
// the end.
#pragma once
#include "attention/sm90/backward/general/score.h"
#include "attention/sm90/backward/two_kernel/kernel_dkdv.h"

namespace attune::sm90 {

template <class Number, int DimQk, int DimV>
struct GeneralDkDvLayout : DkDvLayout<Number, DimQk, DimV> {
  using Base = DkDvLayout<Number, DimQk, DimV>;
  struct Shared {
    typename Base::Shared tiles;
    KeyVisit visits[Base::kStatsStages];
  };
  static constexpr int kVisits = offsetof(Shared, visits), kSharedBytes = sizeof(Shared);
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // walking lists needs more
  static_assert(kSharedBytes <= 227 * 1024);
};

template <class C>
__device__ KeyVisit* key_visit(uint32_t shared, uint32_t step) {
  return static_cast<KeyVisit*>(__cvta_shared_to_generic(shared + C::kVisits + 8 * (step % C::kStatsStages)));
}

template <class C>
struct GeneralDkDvProducer {
  const GeneralParams& x;
  const uint32_t shared;
  const KeyTile& t;

  template <int Panels>
  __device__ void load_queries(uint32_t to, const CUtensorMap& map, const CUtensorMap (&boxes)[kEndBoxes],
                               uint32_t full, int query, int head) const {
    if (query + C::kTileQ > t.rows && t.q_row + t.rows < x.rows_q)
      load_end<Panels>(to, boxes, full, t.q_row + query, t.rows - query, x.rows_q, head, t.q_batch);
    else
      load_panels<C::kTileQ, Panels>(to, map, full, 0, t.q_row + query, head, t.q_batch, Keep::last_to_go);
  }
  __device__ void load_step(uint32_t step, int query, int head) const {
    const uint32_t q = C::q_place(step), o = C::o_place(step), parity = (step / 2 & 1) ^ 1;
    const uint32_t q_full = shared + C::kFull + 8 * q, o_full = shared + C::kFull + 8 * o;
    // Keys of other sequences only affect rows that are not stored.
    if (step == 0) {
      arrive_expect(shared + C::kKFull, C::kBytesK);
      load_panels<C::kTileK, C::kPanelsQk>(shared + C::kK, x.k, shared + C::kKFull, 0, t.k_row + t.key, t.head,
                                           t.k_batch, Keep::first_to_go);
    }
    wait(shared + C::kEmpty + 8 * q, parity);
    *key_visit<C>(shared, step) = {query, head};
    arrive_expect(q_full, C::kBytesQ + C::kBytesStats);
    load_queries<C::kPanelsQk>(shared + C::kTiles + q * C::kBytesTile, x.q, x.q_end, q_full, query, head);
    load_tile(shared + C::kStats + step % C::kStatsStages * C::kBytesStats, x.stats, q_full, 2 * query, head, t.batch,
              0, Keep::last_to_go);
    if (step == 0) {
      arrive_expect(shared + C::kVFull, C::kBytesV);
      load_panels<C::kTileK, C::kPanelsV>(shared + C::kV, x.v, shared + C::kVFull, 0, t.k_row + t.key, t.head,
                                          t.k_batch, Keep::first_to_go);
    }
    wait(shared + C::kEmpty + 8 * o, parity);
    arrive_expect(o_full, C::kBytesO);
    load_queries<C::kPanelsV>(shared + C::kTiles + o * C::kBytesTile, x.d_out, x.d_out_end, o_full, query, head);
  }
  // Query tiles of a list that are within the band.
  __device__ uint32_t load_listed(uint32_t step, int head) const {
    const BlockList list{x.blocks, x.list_begin + t.batch * x.list_batch + head * x.list_head, x.list_row};
    const int row = t.key / x.blocks.k, count = list.count(row);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      const int64_t first = int64_t(list.key_block(row, n)) * x.blocks.q;
#pragma unroll 1
      for (int64_t query = first; query < first + x.blocks.q; query += C::kTileQ)
        if (query >= t.start && query < t.stop) load_step(step++, int(query), head);
    }
    return step;
  }
  __device__ void run() const {
    uint32_t step = 0;
#pragma unroll 1
    for (int head = t.head * x.group; head < (t.head + 1) * x.group; ++head) {
      if (x.blocks.q) {
        step = load_listed(step, head);
        continue;
      }
#pragma unroll 1
      for (int query = t.start; query != t.stop; query += C::kTileQ) load_step(step++, query, head);
    }
    const uint32_t q = C::q_place(step), o = C::o_place(step), parity = (step / 2 & 1) ^ 1;
    wait(shared + C::kEmpty + 8 * q, parity);
    wait(shared + C::kEmpty + 8 * o, parity);
    *key_visit<C>(shared, step) = {-1, 0};
    arrive(shared + C::kFull + 8 * q), arrive(shared + C::kFull + 8 * o);
  }
};

template <class C, bool Values>
struct GeneralDkDvConsumer : DkDvConsumer<C, Values> {
  using Base = DkDvConsumer<C, Values>;
  using T = typename C::T;
  using Base::shared, Base::warp, Base::lane, Base::sums, Base::s, Base::pairs, Base::query;
  const GeneralParams& y;
  const KeyTile& own;
  int head;

  // The n-th visit; false if there is none. Read by the lane that releases the slot: racecheck tracks no other way.
  __device__ bool next(uint32_t n) {
    this->wait_tile(Base::in_place(n), n);
    const KeyVisit now = lane == 0 ? *key_visit<C>(shared, n) : KeyVisit{};
    query = __shfl_sync(~0u, now.query, 0), head = __shfl_sync(~0u, now.head, 0);
    return query >= 0;
  }
  __device__ bool edge() const {
    return own.key + C::kTileK > own.keys || own.key + C::kTileK - 1 > query + own.high ||
           own.key < query + C::kTileQ - 1 + own.low;
  }
  __device__ PairSpot spot() const {
    const int key = own.key + warp * 16 + lane / 4, row = query + lane % 4 * 2;
    PairSpot at{.batch = own.batch, .head = head, .query = row, .key = key, .rows = own.rows, .keys = own.keys,
                .query_0 = -int64_t(own.stand), .key_0 = 0, .from = {}, .count = {}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      at.from[r] = key + 8 * r - own.high - row;
      at.count[r] = key + 8 * r < own.keys ? max(own.high - own.low + 1, 0) : 0;
    }
    return at;
  }
  __device__ void hide(const PairSpot& at) {
#pragma unroll
    for (int n = 0; n < C::kTileQ / 2; ++n)
      if (!PairScore<true>::seen(at, n)) s[n] = 0.f;
  }
  // Turns scores into P. The other warpgroup receives P before dropout, times the slope of a cap, negative if it is
  // dropped.
  __device__ void weigh_scores(uint32_t n, PairSpot& at, const PairScore<true>& score) {
    const uint32_t stage = n % C::kStages;
    wait(shared + C::kPEmpty + 8 * stage, (n / C::kStages & 1) ^ 1);
    if (y.options) {
      float handed[4];
      score.apply(
          s, at,
          [&](int i) {
            const float4 two = this->stats(n, i / 4);
            return i % 2 ? two.z : two.x;
          },
          [&](auto, int i, const auto& w) {
            const float weight = PairScore<true>::seen(at, i) ? w.weight : 0.f;
            handed[i % 4] = copysignf(weight * w.slope, w.keep == 0.f ? -1.f : 1.f);
            s[i] = weight * w.keep;
          },
          [&](int i) { store_shared4(this->exchange(stage, i), handed[0], handed[1], handed[2], handed[3]); });
    } else {
#pragma unroll
      for (int i = 0; i < C::kTileQ / 8; ++i) {
        const float4 two = this->stats(n, i);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[4 * i + e] = sm80::exp2_fast(fmaf(s[4 * i + e], y.scale2, -(e % 2 ? two.z : two.x)));
      }
      if (this->has_large_logits(n)) end_at_one(s);
      if (edge()) hide(at);
#pragma unroll
      for (int i = 0; i < C::kTileQ / 8; ++i)
        store_shared4(this->exchange(stage, i), s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
    }
    arrive(shared + C::kPFull + 8 * stage);
  }
  // Turns dP into dS.
  __device__ void differentiate(uint32_t n, const PairSpot& at) {
    const uint32_t stage = n % C::kStages;
    this->wait_tile(Base::out_place(n), n);
    wait(shared + C::kPFull + 8 * stage, n / C::kStages & 1);
    const float keep = y.kept * y.score.kept;
#pragma unroll
    for (int i = 0; i < C::kTileQ / 8; ++i) {
      const float4 two = this->stats(n, i), p = load_shared4(this->exchange(stage, i));
      const float weight[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool dropped = __float_as_uint(weight[e]) >> 31;
        s[4 * i + e] =
            fabsf(weight[e]) * fmaf(dropped ? 0.f : s[4 * i + e], keep, -(e % 2 ? two.w : two.y));
      }
    }
    arrive(shared + C::kPEmpty + 8 * stage);
    if (edge()) hide(at);
  }
  // Turns the products of step n into pairs. The sums of the previous step are complete then.
  template <bool First>
  __device__ void weigh(uint32_t n) {
    PairSpot at = spot();
    PairScore<true> score{y, {}};
    if (Values && y.options) stand_where_given(y.score, at), score.draw_kept(at);
    wait_products<0>();
    pin(s), pin(sums);
    if constexpr (!First) this->release(C::kEmpty + 8 * Base::out_place(n - 1));
    this->release(C::kEmpty + 8 * Base::in_place(n));
    if constexpr (Values) weigh_scores(n, at, score);
    else differentiate(n, at);
#pragma unroll
    for (int i = 0; i < C::kTileQ / 4; ++i) pairs[i] = sm80::pack<T>(s[2 * i], s[2 * i + 1]);
  }
  __device__ void run() {
#pragma unroll
    for (int n = 0; n < Base::kDimOut / 2; ++n) sums[n] = 0.f;
    if (own.tiles > 0 && next(0)) {
      wait(shared + (Values ? C::kKFull : C::kVFull), 0);
      this->take_keys();
      pin(sums);
      this->issue_scores(0);
      weigh<true>(0);
#pragma unroll 1
      for (uint32_t n = 1;; ++n) {
        this->issue_sums(n - 1);
        if (!next(n)) break;
        this->issue_scores(n);
        weigh<false>(n);
      }
      wait_products<0>();
      pin(sums);
    }
    this->release(C::kDone);
    wait(shared + C::kDone, 0);  // the other has multiplied with the keys whose buffer this one takes
    if (own.key >= own.keys || (own.tiles == 0 && y.cleared) || !(Values ? y.wants_dv : y.wants_dk)) return;
    const int first = own.k_row + own.key + warp * 16;
    store_own_rows<T, C::kTileK>(sums, Values ? 1.f : y.scale, shared + (Values ? C::kV : C::kK), warp * 16,
                                 {Values ? y.dv : y.dk, Values ? y.dv_row : y.dk_row, Values ? y.f32_dv : y.f32_dk,
                                  first, own.k_row + own.keys, y.rows_k, own.head, own.k_batch,
                                  Values ? y.dim_v : y.dim_qk, y.accumulate});
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) general_dkdv_kernel(const __grid_constant__ GeneralParams x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    barrier_init(shared + C::kKFull, 1), barrier_init(shared + C::kVFull, 1);
    barrier_init(shared + C::kDone, 4 * C::kGroups);
    for (int n = 0; n < C::kPlaces; ++n)
      barrier_init(shared + C::kFull + 8 * n, 1), barrier_init(shared + C::kEmpty + 8 * n, 4 * C::kGroups);
    for (int n = 0; n < C::kStages; ++n)
      barrier_init(shared + C::kPFull + 8 * n, 128), barrier_init(shared + C::kPEmpty + 8 * n, 128);
    barrier_init_done();
  }
  __syncthreads();
  // As in dkdv_kernel: the kernel that owns queries started when statistics and tables were ready.
  if (x.alone) sm80::wait_for_previous();
  const BlockPlace place = find_block(x.of_keys, int(blockIdx.x));
  KeyTile t = load_entry(x.key_table, place.tile);
  t.head = place.head;
  if (group == kProducerGroup) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == kLoader && t.tiles > 0) GeneralDkDvProducer<C>{x, shared, t}.run();
  } else {
    grow_registers<C::kConsumerRegisters>();
    const TwoKernelKeyTile none{};  // of the plain walk
    if (group == kFirstConsumer) {
      GeneralDkDvConsumer<C, true> consumer{{x, shared, none, warp, int(threadIdx.x % 32)}, x, t};
      consumer.run();
    } else {
      GeneralDkDvConsumer<C, false> consumer{{x, shared, none, warp, int(threadIdx.x % 32)}, x, t};
      consumer.run();
    }
  }
  sm80::wait_for_previous();
  sm80::admit_next();
}

}  // namespace attune::sm90
