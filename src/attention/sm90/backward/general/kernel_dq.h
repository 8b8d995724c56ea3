// SPDX-License-Identifier: Apache-2.0
// General backward, the kernel that owns queries: dQ, and the gradient of a bias. A CTA has one query tile from the
// table. If blocks of a list have 64 queries, each warpgroup has its own list. The key tiles of both come in one
// stream: a tile that both need comes once, and each skips the tiles of the other.
#pragma once
#include "attention/sm90/backward/general/score.h"
#include "attention/sm90/backward/two_kernel/kernel_dq.h"
#include "attention/tile/list_interleave.h"

namespace attune::sm90 {

template <class Number, int DimQk, int DimV>
struct GeneralDqLayout : DqLayout<Number, DimQk, DimV> {
  using Base = DqLayout<Number, DimQk, DimV>;
  struct Shared {
    typename Base::Shared tiles;
    int tags[Base::kStagesK];
  };
  static constexpr int kTags = offsetof(Shared, tags), kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

// Tag of a key tile: its number, and a bit per warpgroup that needs it.
struct RowsTag {
  static constexpr int kOver = -1;
  static __device__ int of(int number, bool first, bool second) { return number << 2 | second << 1 | int(first); }
};
template <class C>
__device__ int* rows_tag(uint32_t shared, uint32_t step) {
  return static_cast<int*>(__cvta_shared_to_generic(shared + C::kTags + 4 * (step % C::kStagesK)));
}

template <class C>
struct GeneralDqProducer {
  const GeneralParams& x;
  const uint32_t shared;
  const QueryTile& t;

  // Walks a list from its end: the key tile at position `at`; the list ends below `low`.
  struct Walk { int at, low; };
  // Log2 of the key tiles per block.
  __device__ int tiles_shift() const { return x.blocks.k > C::kTileK; }
  // -1 after the last. An entry that is not a block of the sequence maps to a tile past all keys.
  __device__ int number(const Walk& w) const {
    if (w.at < w.low) return -1;
    if (!x.blocks.q) return w.at;
    const uint32_t behind = uint32_t(t.keys + C::kTileK - 1) / C::kTileK, shift = uint32_t(tiles_shift());
    const uint32_t block = uint32_t(__ldcg(x.column + t.column + (w.at >> shift)));
    return int(min((min(block, behind) << shift) + (w.at & ((1 << shift) - 1)), behind));
  }
  __device__ void load_k(uint32_t step, int tag) const {
    const uint32_t stage = step % C::kStagesK, full = shared + C::kKFull + 8 * stage;
    wait(shared + C::kKEmpty + 8 * stage, (step / C::kStagesK & 1) ^ 1);
    *rows_tag<C>(shared, step) = tag;
    if (tag == RowsTag::kOver) return arrive(full);
    const uint32_t to = shared + C::kK + stage * C::kBytesK;
    const int key = (tag >> 2) * C::kTileK;
    arrive_expect(full, C::kBytesK);
    if (key + C::kTileK > t.keys && t.k_row + t.keys < x.rows_k)
      load_end<C::kPanelsQk>(to, x.k_end, full, t.k_row + key, t.keys - key, x.rows_k, t.k_head, t.k_batch);
    else
      load_panels<C::kTileK, C::kPanelsQk>(to, x.k, full, 0, t.k_row + key, t.k_head, t.k_batch, Keep::last_to_go);
  }
  // Keys of other sequences only affect columns that are masked.
  __device__ void load_v(uint32_t step, int tag) const {
#pragma unroll 1
    for (int p = 0; p < C::kVSlices; ++p) {
      const uint32_t slice = step * C::kVSlices + p, stage = slice % C::kStagesV, full = shared + C::kVFull + 8 * stage;
      wait(shared + C::kVEmpty + 8 * stage, (slice / C::kStagesV & 1) ^ 1);
      arrive_expect(full, C::kBytesV);
      load_panels<C::kTileK, C::kPanelsSlice>(shared + C::kV + stage * C::kBytesV, x.v, full, p * C::kPanelsSlice,
                                              t.k_row + (tag >> 2) * C::kTileK, t.k_head, t.k_batch, Keep::last_to_go);
    }
  }
  __device__ void run() const {
    const uint32_t q = shared + C::kQFull, o = shared + C::kOFull;
    arrive_expect(q, C::kBytesQ);
    load_panels<C::kTileQ, C::kPanelsQk>(shared + C::kQ, x.q, q, 0, t.row, t.head, t.batch, Keep::first_to_go);
    const bool two = x.blocks.q && x.blocks.q < C::kTileQ;
    Walk a{two ? t.first - 1 : t.last, x.blocks.q ? 0 : t.first}, b = two ? Walk{t.last, t.first} : Walk{-1, 0};
    ListInterleave interleave{.most = INT32_MAX};  // no warpgroup holds a tile while it looks for its next
    uint32_t step = 0;
#pragma unroll 1
    for (;; ++step) {
      const int of_a = number(a), of_b = two ? number(b) : of_a;
      if (of_a < 0 && of_b < 0) break;
      const auto [for_a, for_b] = interleave.next(of_a, of_b);
      if (for_a) --a.at;
      if (for_b) --b.at;
      const int tag = RowsTag::of(for_a ? of_a : of_b, for_a, for_b);
      load_k(step, tag);
      if (step == 0) {
        arrive_expect(o, C::kBytesO);
        load_panels<C::kTileQ, C::kPanelsV>(shared + C::kO, x.d_out, o, 0, t.row, t.head, t.batch, Keep::first_to_go);
      }
      load_v(step, tag);
    }
    load_k(step, RowsTag::kOver);
  }
};

template <class C>
struct GeneralDqConsumer : DqConsumer<C> {
  using Base = DqConsumer<C>;
  using T = typename C::T;
  using Base::shared, Base::group, Base::warp, Base::lane;
  using Base::dq, Base::s, Base::dp, Base::ds, Base::lse, Base::delta;
  const GeneralParams& y;
  const QueryTile& at_tile;

  // Read by the lane that releases the slot: racecheck tracks no other way.
  __device__ int tag_of(uint32_t n) const {
    wait(shared + C::kKFull + 8 * (n % C::kStagesK), n / C::kStagesK & 1);
    return __shfl_sync(~0u, lane == 0 ? *rows_tag<C>(shared, n) : 0, 0);
  }
  __device__ void release_k(uint32_t n) const { this->release(C::kKEmpty + 8 * (n % C::kStagesK)); }
  __device__ void release_slice(uint32_t slice) const { this->release(C::kVEmpty + 8 * (slice % C::kStagesV)); }
  // v is released only after it has arrived: before that its slot may still hold another key tile.
  __device__ void pass_over(uint32_t n) const {
    release_k(n);
#pragma unroll 1
    for (uint32_t slice = n * C::kVSlices; slice < (n + 1) * C::kVSlices; ++slice) {
      wait(shared + C::kVFull + 8 * (slice % C::kStagesV), slice / C::kStagesV & 1);
      __syncwarp();  // one lane releases v: only after all have waited for it
      release_slice(slice);
    }
  }
  static __device__ void hide(float (&to)[C::kTileK / 2], const PairSpot& at) {
#pragma unroll
    for (int n = 0; n < C::kTileK / 2; ++n)
      if (!PairScore<false>::seen(at, n)) to[n] = 0.f;
  }
  __device__ PairSpot spot(int key) const {
    const QueryTile& t = at_tile;
    const int row = group * 64 + warp * 16 + lane / 4, first = key + lane % 4 * 2;
    PairSpot at{.batch = t.sequence, .head = t.head, .query = t.query + row, .key = first,
                .rows = t.query + t.end - t.row, .keys = t.keys, .query_0 = t.stand - t.query, .key_0 = 0,
                .from = {}, .count = {}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int from = t.from + row + 8 * r, until = min(t.until + row + 8 * r, t.keys);
      at.from[r] = from - first, at.count[r] = at.query + 8 * r < at.rows ? max(until - from, 0) : 0;
    }
    return at;
  }
  __device__ void add_bias_gradient(const PairSpot& at, int n, float d_logit) const {
    char* const to = row_address(y.d_bias, at.batch, 0, at.head) + PairScore<false>::offset(y.d_bias, at, n);
    atomicAdd(reinterpret_cast<float*>(to), d_logit * y.kept_out);
  }
  // Turns the scores of step n into dS, in pairs.
  __device__ void differentiate(uint32_t n, int key) {
    PairSpot at = spot(key);
    PairScore<false> score{y, {}};
    if (y.options) stand_where_given(y.score, at), score.draw_kept(at);
    const int low = at_tile.from + group * 64, high = at_tile.until - 1 + group * 64;  // of the warpgroup's first row
    const bool partial = key + C::kTileK > at_tile.keys || key + C::kTileK - 1 > high || key < low + 63;
    wait_products<C::kVSlices>();
    pin(s);
    if (!y.options) {
#pragma unroll
      for (int i = 0; i < C::kTileK / 2; ++i) s[i] = sm80::exp2_fast(fmaf(s[i], y.scale2, -lse[i / 2 % 2]));
      if (this->has_large_logits()) end_at_one(s);
      if (partial) hide(s, at);
    }
    wait_products<0>();
    pin(dp);
#pragma unroll
    for (int p = 0; p < C::kVSlices; ++p) release_slice(n * C::kVSlices + p);
    if (y.options) {
      const bool of_bias = y.d_bias.data;
      score.apply(
          s, at, [&](int i) { return lse[i / 2 % 2]; },
          [&](auto biased, int i, const auto& w) {
            const bool seen = PairScore<false>::seen(at, i);
            const float d_logit = seen ? w.weight * fmaf(w.keep * y.kept, dp[i], -delta[i / 2 % 2]) : 0.f;
            if constexpr (decltype(biased)::value)
              if (of_bias && seen) add_bias_gradient(at, i, d_logit);
            dp[i] = d_logit * w.slope;
          },
          [](int) {});
    } else {
#pragma unroll
      for (int i = 0; i < C::kTileK / 2; ++i) dp[i] = s[i] * fmaf(dp[i], y.kept, -delta[i / 2 % 2]);
      if (partial) hide(dp, at);
    }
#pragma unroll
    for (int i = 0; i < C::kTileK / 4; ++i) ds[i] = sm80::pack<T>(dp[2 * i], dp[2 * i + 1]);
  }
  __device__ void run() {
    const QueryTile& t = at_tile;
    const int first = group * 64 + warp * 16;
    const float2* stats =
        y.row_stats + (int64_t(t.sequence) * y.heads + t.head) * y.padded + t.query + first + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 one = __ldcg(stats + 8 * r);
      lse[r] = one.x, delta[r] = one.y;
    }
#pragma unroll
    for (int n = 0; n < C::kDimQk / 2; ++n) dq[n] = 0.f;
    if (t.keys > 0) {
      bool begun = false;
      wait(shared + C::kQFull, 0);
#pragma unroll 1
      for (uint32_t n = 0;; ++n) {
        const int tag = tag_of(n);
        if (tag == RowsTag::kOver) break;
        if (!(tag >> group & 1)) {
          pass_over(n);
          continue;
        }
        if (!begun) this->start = n, begun = true;
        pin(dq);
        this->issue_scores(n);
        differentiate(n, (tag >> 2) * C::kTileK);
        this->issue_dq(n);
        wait_products<0>();
        pin(dq);
        release_k(n);
      }
    }
    if (!y.wants_dq) return;
    store_own_rows<T, C::kTileQ>(dq, y.scale, shared + C::kQ, first,
                                 {y.dq, y.dq_row, y.f32_dq, t.row + first, t.end, y.rows_q, t.head, t.batch, y.dim_qk,
                                  y.accumulate});
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) general_dq_kernel(const __grid_constant__ GeneralParams x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    barrier_init(shared + C::kQFull, 1), barrier_init(shared + C::kOFull, 1);
    for (int n = 0; n < C::kStagesK; ++n)
      barrier_init(shared + C::kKFull + 8 * n, 1), barrier_init(shared + C::kKEmpty + 8 * n, C::kWarps);
    for (int n = 0; n < C::kStagesV; ++n)
      barrier_init(shared + C::kVFull + 8 * n, 1), barrier_init(shared + C::kVEmpty + 8 * n, C::kWarps);
    barrier_init_done();
  }
  __syncthreads();
  sm80::wait_for_previous();
  sm80::admit_next();
  const BlockOrder order{__ldcg(x.row_tiles), x.of_rows.heads, x.of_rows.section};
  if (int64_t(blockIdx.x) >= int64_t(order.tiles) * order.heads) return;
  const BlockPlace at = find_block(order, int(blockIdx.x));
  QueryTile t = load_entry(x.row_table, at.tile);
  if (!x.blocks.q) t.head = at.head, t.k_head = at.head / x.group;
  if (group == kProducerGroup) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == kLoader && t.keys > 0) GeneralDqProducer<C>{x, shared, t}.run();
  } else {
    grow_registers<C::kConsumerRegisters>();
    GeneralDqConsumer<C> consumer{{x, shared, group - kFirstConsumer, warp, int(threadIdx.x % 32), {}, 0, 0}, x, t};
    consumer.run();
  }
}

}  // namespace attune::sm90
