// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: a consumer warpgroup of sm90/backward/kernel.h, which owns 64 keys. Scores are
// transposed, rows are keys:
//   S^T = K Q^T, dP^T = V dO^T -> P^T, dS^T in registers, as operands of dV += P^T dO and dK += dS^T Q
// Only dS goes through shared memory, for dQ = dS K. Each warpgroup computes 64 x 64 of it and adds to f32 sums in
// global memory. Transposed, with 80 queries: dQ^T = K^T dS^T, of which each warpgroup has 64 columns of dQ.
#pragma once
#include "attention/sm90/backward/large_logits.h"
#include "attention/sm90/backward/store_dkdv.h"
#include "attention/sm90/backward/producer.h"
#include "attention/sm90/backward/score.h"
#include "machine/sm80/memory.h"
#include "machine/sm80/dependent_launch.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/tma.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

template <class C>
struct BackwardConsumer : KeyGradients<C> {
  using T = typename C::T;
  using Base = KeyGradients<C>;
  using Base::clear, Base::combine_query_splits, Base::group, Base::lane, Base::shared, Base::stage,
      Base::store_gradient, Base::store_split, Base::stores_split, Base::t, Base::wants_dk, Base::wants_dv, Base::warp,
      Base::x;
  uint32_t begin = 0, behind = 0;      // first step of these keys; persistent, not independent: one past their last
  uint32_t place = 0, last_place = 0;  // persistent: buffer of these keys; of the keys whose dQ is next

  float dk[C::kDim / 2], dv[C::kDim / 2];
  float s[C::kTileQ / 2], dp[C::kTileQ / 2];
  float row[C::kTileQ / 4];                      // log-sum-exps, then deltas, of the lane's queries
  uint32_t p[C::kTileQ / 4], ds[C::kTileQ / 4];  // pairs, as operands of products
  int query, head;                               // of this step
  int marks;                                     // persistent with lists: those of the visit
  int last_query, last_head;                     // independent: of the previous step, whose dQ this step computes
  bool last_is_first;                            // tickets: no CTA adds to its query tile before
  uint32_t buffer, again;                        // independent: of dS, and its previous uses modulo 2

  __device__ int rows_of_dq() const { return C::kTabled ? min(t.rows, x.rows_of_dq) : x.rows_of_dq; }
  __device__ int keys() const { return C::kTabled ? t.keys : x.keys; }
  __device__ int low() const { return C::kTabled ? t.low : x.low; }
  __device__ int high() const { return C::kTabled ? t.high : x.high; }
  __device__ void release(int barrier) const {
    if (lane == 0) arrive(shared + barrier);
  }
  __device__ int keys_at() const { return C::kPlacesK > 1 ? C::kK + int(place) * C::kBytesK : C::kK; }
  __device__ int values_at() const { return C::kPlacesV > 1 ? C::kV + int(place) * C::kBytesK : C::kV; }
  // [64 keys x kTileQ] = own rows of `keys`, rows of a query tile. Added: accumulates onto the registers.
  template <bool Added = false>
  __device__ void issue_scores(float (&to)[C::kTileQ / 2], int keys, int queries) {
    const uint32_t a = operand(shared + keys + group * 64 * 128, 0), b = operand(shared + queries, 0);
    if constexpr (!Added) forget(to);
    begin_products();
#pragma unroll
    for (int n = 0; n < C::kDim / 16; ++n)
      Product<T, C::kTileQ>::shared(to, a + (n / 4 * C::kPanelK + n % 4 * 32) / 16,
                                    b + (n / 4 * C::kPanelQ + n % 4 * 32) / 16, Added || n > 0);
    close_products();
  }
  __device__ void issue_sums(float (&to)[C::kDim / 2], const uint32_t (&weights)[C::kTileQ / 4], int queries) {
    const uint32_t b = operand(shared + queries, C::kPanelQ);
    begin_products();
#pragma unroll
    for (int n = 0; n < C::kTileQ / 16; ++n)
      Product<T, C::kDim>::registers(to, weights + 4 * n, b + n * 16 * 128 / 16, 1);
    close_products();
  }
  __device__ void issue_dq(float (&to)[C::kSumsDq], int buffer) {
    constexpr int kBlocks = C::kTileQ / 64;
    const uint32_t weights = operand(shared + C::kDs + buffer * C::kBytesDs + group % kBlocks * C::kPanelK, 0);
    const int from = C::kCarries ? C::kK + int(last_place) * C::kBytesK : keys_at();
    const uint32_t keys = operand(shared + from + group / kBlocks * C::kPanelK, 0);
    if constexpr (!C::kTransposed) forget(to);
    begin_products();
#pragma unroll
    for (int n = 0; n < C::kTileK / 16; ++n)
      if constexpr (C::kTransposed)
        Product<T, C::kTileQ>::transposed_a(to, keys + n * 16 * 128 / 16, weights + C::tile().keys(n) / 16, n > 0);
      else Product<T, 64>::transposed(to, weights + n * 16 * 128 / 16, keys + n * 16 * 128 / 16, n > 0);
    close_products();
  }
  // True if some pair of this warpgroup's keys and this query tile is masked.
  __device__ bool edge() const {
    int key = t.key + group * 64;
    own_register(key);
    return key + 64 > keys() || key + 63 > query + high() || key < query + C::kTileQ - 1 + low();
  }
  __device__ void hide(float (&to)[C::kTileQ / 2]) const {
    const int key = t.key + group * 64 + warp * 16 + lane / 4, row = query + lane % 4 * 2;
    int from[2], last[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      from[r] = key + 8 * r < keys() ? key + 8 * r - high() - row : C::kTileQ;
      last[r] = key + 8 * r - low() - row;
    }
#pragma unroll
    for (int n = 0; n < C::kTileQ / 2; ++n) {
      const int c = n / 4 * 8 + n % 2, r = n / 2 % 2;
      if (c < from[r] || c > last[r]) to[n] = 0.f;
    }
  }
  // With options: turns S and dP, both complete, into P and dS. Random numbers are drawn while dP is in flight.
  __device__ void weigh_with_options(uint32_t stage) {
    const int key = t.key + group * 64 + warp * 16 + lane / 4, row = query + lane % 4 * 2;
    TransposedSpot at{.batch = t.batch, .head = head, .query = row, .key = key, .rows = t.rows, .keys = t.keys,
                  .from = {}, .last = {}, .stand = t.stand};
    if (x.score.positions) {
      const int64_t* given = x.score.positions + at.batch * x.score.position_stride;
      at.stand = clamp_position(given[1]) - clamp_position(given[0]);
    }
    TransposedScore<C::kTileQ / 2> score{x};
    score.prepare(at);
    wait_products<0>();
    pin(dp);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      at.from[r] = key + 8 * r < t.keys ? key + 8 * r - t.high - row : C::kTileQ;
      at.last[r] = key + 8 * r - t.low - row;
    }
    score.apply(s, dp, at, [&](int n) { return stats(stage, n); });
  }
  // For two adjacent queries: log-sum-exp, delta, log-sum-exp, delta.
  __device__ float4 stats(int stage, int n) const {
    const float4 two = load_shared4(shared + C::kStats + stage * C::kBytesStats + lane % 4 * 16 + n * 64);
    return C::kTransposed ? float4{two.x, two.z, two.y, two.w} : two;  // there they are paired
  }
  __device__ void store_ds(int buffer) const {
    const int r = warp * 16 + group * 64 + lane % 16, half = lane / 16;
#pragma unroll
    for (int n = 0; n < C::kTileQ / 16; ++n)
      store_matrix4<C::kTransposed>(shared + C::kDs + buffer * C::kBytesDs +
                                    (C::kTransposed ? C::tile().store(group, warp, lane, n)
                                                : n / 4 * C::kPanelK + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4)),
                                ds[4 * n], ds[4 * n + 1], ds[4 * n + 2], ds[4 * n + 3]);
  }
  // Offset of a warp's part of dQ in its buffer; in a deterministic order the same as in memory.
  __device__ int part_of_dq() const {
    constexpr int kBlocks = C::kTileQ / 64;
    if constexpr (!C::kDeterministic) return (group * 4 + warp) * C::kBytesDq;
    return (group % kBlocks * 64 + warp * 16) * C::kDqPitch * 4 + group / kBlocks * C::kBytesDq;
  }
  // Hands dQ to the adder thread.
  __device__ void hand_dq(const float (&dq)[C::kSumsDq], uint32_t n) const {
    const uint32_t to = shared + C::kDq + n % C::kPlacesDq * C::kWarps * C::kBytesDq + part_of_dq();
    const uint32_t before = n - C::kPlacesDq + C::kAdders;  // step that had this buffer, one round of barriers later
    wait(shared + C::kDqEmpty + 8 * (before % C::kAdders), (before / C::kAdders & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      store_shared4(to + lane * 16 + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    publish_shared();
    __syncwarp();
    release(C::kDqFull + 8 * (n % C::kAdders));
  }
  __device__ void add_from_registers(const float (&dq)[C::kSumsDq], float* to) const {
#pragma unroll
    for (int n = 0; n < 8; ++n)
      add_global4(to + n * 128 + lane * 4, dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
  }
  // Adds when the CTA has the ticket. The thread that passes it on waits for all warps and for their writes.
  __device__ void add_by_ticket(const float (&dq)[C::kSumsDq], uint32_t n, float* to) const {
    const uint32_t place = n % 2;
    wait(shared + C::kTicket + 8 * place, n / 2 & 1);
    if (last_is_first) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        reinterpret_cast<float4*>(to)[i * 32 + lane] = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
    } else {
      add_from_registers(dq, to);
    }
    __syncwarp();
    release(C::kDqFull + 8 * place);
  }
  // Adds dQ of step n. If not deterministic, rows past the end have nothing to add and no cleared sums.
  __device__ void add_dq(const float (&dq)[C::kSumsDq], uint32_t n, int of_query, int of_head) const {
    if constexpr (C::kDeterministic && !C::kTakesTickets) return hand_dq(dq, n);
    constexpr int kBlocks = C::kTileQ / 64;
    if constexpr (!C::kDeterministic)
      if (of_query + group % kBlocks * 64 >= rows_of_dq()) return;
    float* to = x.dq + (int64_t(C::kCarries ? 0 : t.batch) * x.heads + of_head) * x.padded * C::kDqPitch;
    if constexpr (C::kTransposed)
      to += TransposedTile{x.padded}.fragment(of_query, (group * 4 + warp) * TransposedTile::kColumns);
    else to += int64_t(of_query + group % kBlocks * 64 + warp * 16) * C::kDqPitch + group / kBlocks * 64 * 16;
    if constexpr (C::kTakesTickets) return add_by_ticket(dq, n, to);
    if constexpr (C::kIndependent) return add_from_registers(dq, to);
    const uint32_t from = shared + C::kDq + part_of_dq();
    if (lane == 0) wait_stores_read();  // of the previous tile
    __syncwarp();
#pragma unroll
    for (int n = 0; n < C::kSumsDq / 4; ++n)
      store_shared4(from + lane * 16 + n * 512, dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
    publish_shared();
    __syncwarp();
    if (lane == 0) {
      add_floats(to, from, C::kBytesDq, Keep::last_to_go);
      close_stores();
    }
  }

  static __device__ void pack(uint32_t (&to)[C::kTileQ / 4], const float (&from)[C::kTileQ / 2]) {
#pragma unroll
    for (int n = 0; n < C::kTileQ / 4; ++n) to[n] = sm80::pack<T>(from[2 * n], from[2 * n + 1]);
  }
  // Independent: the dS buffer of the previous step; waits until both warpgroups have written it.
  __device__ uint32_t last() const { return buffer == 0 ? C::kBuffers - 1 : buffer - 1; }
  __device__ void wait_last() const { wait(shared + C::kDsFull + 8 * last(), buffer == 0 ? again ^ 1 : again); }

  __device__ void load_sums(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < C::kTileQ / 8; ++i) {
      const float4 two = stats(stage, i);
      row[2 * i] = two.x, row[2 * i + 1] = two.z;
    }
  }
  __device__ void load_deltas(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < C::kTileQ / 8; ++i) {
      const float4 two = stats(stage, i);
      row[2 * i] = two.y, row[2 * i + 1] = two.w;
    }
  }
  // Whether the launch has a row with large logits. Kept in shared memory, because registers are scarce. Read once per
  // CTA; persistent CTAs receive it with each tile.
  __device__ uint32_t place_of_large_logits() const { return shared + C::kLargeLogitsOfWarp + (group * 4 + warp) * 4; }
  __device__ void ask_large_logits() const {
    if constexpr (!C::kAsksLaunch) return;
    const bool large_logits =
        !C::kPersistent && __ldcg(reinterpret_cast<const unsigned long long*>(x.large_logits)) == x.launch;
    const uint32_t told = shared + C::kLargeLogitsOfTile + 4 * place;
    if (lane == 0) sm80::store_shared(place_of_large_logits(), C::kPersistent ? load_shared(told) : large_logits);
    __syncwarp();
  }
  // Log-sum-exps are read from shared memory again: keeping them would cost registers in all other tiles.
  __device__ void cut_large_logits(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < C::kTileQ / 2; ++i) {
      const float4 two = stats(stage, i / 4);
      if (is_lowered(i % 2 ? two.z : two.x)) s[i] = at_most_one(s[i]);
    }
  }
  // Transposed: loads -delta, where dP starts, and as many log-sum-exps as there are registers for.
  __device__ void load_both(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < C::kTileQ / 8; ++i) {
      const float4 two = stats(stage, i);
      if (i < C::kRowsAhead) row[2 * i] = two.x, row[2 * i + 1] = two.z;
      dp[4 * i] = dp[4 * i + 2] = -two.y, dp[4 * i + 1] = dp[4 * i + 3] = -two.w;
    }
  }
  // Turns S and dP into P and dS; independent kernels issue dV in between. Statistics are loaded before waiting for a
  // product, except in independent kernels, which lack the registers.
  __device__ void weigh(uint32_t stage, int d_out) {
    const bool partial = edge(), large_logits = C::kAsksLaunch && load_shared(place_of_large_logits());
    if constexpr (C::kIndependent) load_sums(stage);
#pragma unroll
    for (int i = 0; i < C::kTileQ / 2; ++i)
      s[i] = sm80::exp2_fast(fmaf(s[i], x.scale2, -row[i / 4 * 2 + i % 2]));
    if (partial || large_logits) {
      if (large_logits) cut_large_logits(stage);
      if (partial) hide(s);
    }
    pack(p, s);
    if constexpr (!C::kAsksLaunch)
      if (has_above_one(p)) {
        end_at_one(s);
        pack(p, s);
      }
    if constexpr (C::kIndependent) {
      issue_sums(dv, p, d_out);
      wait_products<1>();
      pin(dp);
      load_deltas(stage);
    } else {
      load_deltas(stage);
      wait_products<0>();
      pin(dp);
    }
#pragma unroll
    for (int i = 0; i < C::kTileQ / 2; ++i) dp[i] = s[i] * fmaf(dp[i], x.kept, -row[i / 4 * 2 + i % 2]);
    if (partial) hide(dp);
  }

  // Transposed: there are too few registers for P as pairs beside S and dP, so P is packed after dS.
  __device__ void weigh_transposed(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < C::kTileQ / 8; ++i) {
      const float4 two = i < C::kRowsAhead ? float4{row[2 * i], 0.f, row[2 * i + 1], 0.f} : stats(stage, i);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[4 * i + e] = sm80::exp2_fast(fmaf(s[4 * i + e], x.scale2, -(e % 2 ? two.z : two.x)));
    }
    const bool partial = edge(), large_logits = load_shared(place_of_large_logits());
    if (partial || large_logits) {
      if (large_logits) cut_large_logits(stage);
      if (partial) hide(s);
    }
    wait_products<0>();
    pin(dp);
    if (partial) hide(dp);  // a masked pair may be NaN
#pragma unroll
    for (int i = 0; i < C::kTileQ / 4; ++i) ds[i] = sm80::pack<T>(s[2 * i] * dp[2 * i], s[2 * i + 1] * dp[2 * i + 1]);
  }
  // Transposed: dQ takes the registers of S. With others, ptxas runs out of registers and serializes all products
  // (13.0, C7512).
  template <int N>
  __device__ auto& sums_of_dq(float (&own)[N]) {
    if constexpr (C::kTransposed) return s;
    else return own;
  }

  // The first step without a predecessor: among these keys, or among all keys if dQ is carried over.
  __device__ uint32_t first() const { return C::kPersistent && !C::kCarries ? begin : 0; }
  // In flight on entry and on return: dK of the previous step.
  __device__ void step(uint32_t n) {
    const uint32_t stage = n % 2, round = n / 2 % 2;
    const int q = C::kQ + stage * C::kBytesQ, d_out = C::kO + stage * C::kBytesQ;
    wait(shared + C::kQFull + 8 * stage, round);
    issue_scores(s, keys_at(), q);
    wait_products<1>();
    pin(dk);
    if (n > first()) release(C::kQEmpty + 8 * (stage ^ 1));
    if constexpr (C::kTransposed) load_both(stage);
    wait(shared + C::kOFull + 8 * stage, round);
    issue_scores<C::kTransposed>(dp, values_at(), d_out);
    if constexpr (!(C::kIndependent || C::kOptions || C::kTransposed)) load_sums(stage);
    if constexpr (C::kWalks) take_visit(n);
    wait_products<1>();
    pin(s);
    if constexpr (C::kOptions) weigh_with_options(stage);
    else if constexpr (C::kTransposed) weigh_transposed(stage);
    else weigh(stage, d_out);
    if constexpr (C::kOptions) pack(p, s);
    if constexpr (!C::kTransposed) pack(ds, dp);
    float own[C::kSumsDq];
    auto& dq = sums_of_dq(own);
    await_places(n);
    if constexpr (C::kIndependent) {
      wait(shared + C::kDsEmpty + 8 * buffer, again ^ 1);
      store_ds(buffer);
      if constexpr (C::kOptions) issue_sums(dv, p, d_out);
      publish_shared();
      __syncwarp();
      release(C::kDsFull + 8 * buffer);
      wait_products<0>();
      release(C::kOEmpty + 8 * stage);
      if (n > first()) wait_last();
      issue_dq(dq, last());  // of arbitrary content at first
    } else {
      // The buffer is free: both warpgroups had dQ of two steps ago before they met in the last step.
      store_ds(stage);
      if constexpr (C::kTransposed) pack(p, s);
      issue_sums(dv, p, d_out);
      publish_shared();
      meet(n);
      wait_products<0>();
      release(C::kOEmpty + 8 * stage);
      if (C::kPersistent && is_last(n)) release(C::kVEmpty);
      issue_dq(dq, stage);
    }
    issue_sums(dk, ds, q);
    wait_products<1>();
    pin(dq);
    if constexpr (C::kIndependent) {
      if (n > first()) {
        release(C::kDsEmpty + 8 * last());
        if (C::kCarries && place != last_place) release(C::kKEmpty + 8 * last_place);
        add_dq(dq, n - 1, last_query, last_head);
      }
      last_query = query, last_head = head, last_place = place;
      if constexpr (C::kTakesTickets) last_is_first = is_first_to_add(t, query, C::kTileQ, C::kTileK);
      if (++buffer == C::kBuffers) buffer = 0, again ^= 1;
    } else {
      add_dq(dq, n, query, head);
    }
    if constexpr (!C::kListed) advance();
  }
  __device__ void advance() {
    query += C::kTileQ;
    if (query == t.stop) query = t.start, ++head;
  }
  // Persistent: waits until the gradients of the previous keys have left through the buffers of dS and dQ.
  __device__ void await_places(uint32_t n) const {
    if (C::kCarries ? place != last_place : C::kPersistent && n == begin) {
      if (lane == 0) wait_stores_read();
      __syncwarp();
      if constexpr (C::kTransposed) named_sync(kConsumersMeet, kConsumerThreads);  // through those of all warps
    }
  }
  // dS of both warpgroups is complete. In the first step one of them may be in step_hidden, and compute-sanitizer
  // reports divergence if threads wait for a named barrier at two places.
  __device__ void meet(uint32_t n) const {
    if (!C::kSkips || n != begin) return named_sync(kConsumersMeet, kConsumerThreads);
    __syncwarp();
    release(C::kDsFull);
    wait(shared + C::kDsFull, place);  // one phase per key tile
  }
  // True if all pairs of this warpgroup's keys and this query tile are masked.
  __device__ bool is_hidden() const {
    const int key = t.key + group * 64;
    return key > query + C::kTileQ - 1 + high() || key + 63 < query + low();
  }
  // The first step of these keys if this warpgroup's pairs are masked: it only computes its columns of dQ.
  __device__ void step_hidden(uint32_t n) {
    const uint32_t stage = n % 2, round = n / 2 % 2;
    wait(shared + C::kQFull + 8 * stage, round), wait(shared + C::kOFull + 8 * stage, round);
    await_places(n);
#pragma unroll
    for (uint32_t& two : ds) two = 0;
    store_ds(stage);
    publish_shared();
    meet(n);
    release(C::kOEmpty + 8 * stage);
    if (n + 1 == behind) release(C::kVEmpty);
    float dq[C::kSumsDq];
    issue_dq(dq, stage);
    wait_products<0>();
    pin(dq);
    add_dq(dq, n, query, head);
    advance();
  }
  // Lists: the n-th visit; false if there is none. Read by the lane that releases the stage: racecheck tracks no other
  // way.
  __device__ bool next(uint32_t n) {
    wait(shared + C::kQFull + 8 * (n % 2), n / 2 % 2);
    const KeyVisit now = lane == 0 ? *visit<C>(shared, n % 2) : KeyVisit{};
    query = __shfl_sync(~0u, now.query, 0), head = __shfl_sync(~0u, now.head, 0);
    return query >= 0;
  }
  // The same for persistent CTAs, after q of the step has arrived.
  __device__ void take_visit(uint32_t n) {
    const ListedVisit now = lane == 0 ? listed_visit<C>(shared, n % 2) : ListedVisit{};
    query = __shfl_sync(~0u, now.query, 0), head = __shfl_sync(~0u, now.head, 0);
    marks = __shfl_sync(~0u, now.marks, 0);
  }
  // Persistent, not independent: the last step of these keys.
  __device__ bool is_last(uint32_t n) const {
    if constexpr (C::kWalks) return marks & ListedVisit::kListEnd;
    return n + 1 == behind;
  }

  __device__ void run() {
    uint32_t steps = uint32_t(t.tiles) * uint32_t(x.group);
    if constexpr (C::kListed) {
      if (!next(0)) return clear();
    } else if (steps == 0) {
      return clear();
    }
#pragma unroll
    for (int n = 0; n < C::kDim / 2; ++n) dk[n] = dv[n] = 0.f;
    buffer = again = 0;
    wait(shared + C::kKFull, 0);
    if constexpr (C::kListed) {
#pragma unroll 1
      for (steps = 0; next(steps); ++steps) step(steps);
    } else {
      query = t.start, head = t.head * x.group;
#pragma unroll 1
      for (uint32_t n = 0; n < steps; ++n) step(n);
    }
    if constexpr (C::kIndependent) {
      wait_last();
      float dq[C::kSumsDq];
      issue_dq(dq, last());
      wait_products<0>();
      pin(dq);
      add_dq(dq, steps - 1, last_query, last_head);
    } else {
      wait_products<0>();
    }
    pin(dk), pin(dv);
    if (stores_split()) {
      store_split(dk, dv);
    } else {
      if (wants_dv()) store_gradient(dv, 1.f, C::kV, true);
      named_sync(kConsumersMeet, kConsumerThreads);  // the other warpgroup has multiplied with these rows of k
      if (wants_dk()) store_gradient(dk, x.scale_k, C::kK, false);
    }
    if (lane == 0) wait_stores();
  }
  // The CTA's round-th keys. Counts of steps and buffers continue from keys to keys.
  __device__ void run_persistent(uint32_t round, int tile) {
    uint32_t steps = uint32_t(t.tiles) * uint32_t(x.group);
    if constexpr (C::kCarries) steps = __reduce_or_sync(~0u, steps);  // otherwise ptxas 13.0 counts in vector registers
    const uint32_t end = begin + steps;
#pragma unroll
    for (int n = 0; n < C::kDim / 2; ++n) dk[n] = dv[n] = 0.f;
    wait_keys(round, end);
    query = t.start, head = t.head * x.group;
    if constexpr (C::kCarries) head += t.batch * x.heads;  // t is the next tile when dQ is added
    uint32_t n = begin;
    if constexpr (C::kSkips) {
      // Otherwise ptxas 13.0 counts in vector registers and puts an arrive between products (C7519).
      n = __reduce_or_sync(~0u, n);
      if (__reduce_or_sync(~0u, is_hidden())) step_hidden(n++);
    }
#pragma unroll 1
    for (; n < end; ++n) step(n);
    leave_keys(end, tile);
  }
  // A step without products, for keys that no query sees.
  __device__ void pass_over(uint32_t n) {
    wait(shared + C::kOFull + 8 * (n % 2), n / 2 % 2);
    __syncwarp();  // one lane releases: only after all have waited
    release(C::kVEmpty), release(C::kOEmpty + 8 * (n % 2));
  }
  __device__ void run_listed(uint32_t round, int tile) {
#pragma unroll
    for (int n = 0; n < C::kDim / 2; ++n) dk[n] = dv[n] = 0.f;
    wait_keys(round, 0);
    uint32_t end = begin;
    wait(shared + C::kQFull + 8 * (end % 2), end / 2 % 2);
    take_visit(end);
    bool more = !(marks & ListedVisit::kNothing);
    if (!more) pass_over(end++);
#pragma unroll 1
    for (; more; ++end) {
      step(end);
      more = !is_last(end);
    }
    leave_keys(end, tile);
  }
  __device__ void leave_keys(uint32_t end, int tile) {
    uint32_t free = 0;  // a dS buffer that is not in use
    if constexpr (C::kCarries) {
      wait_products<0>();
      release(C::kVEmpty + 8 * place);
      free = buffer + 1 == C::kBuffers ? 0 : buffer + 1;
      wait(shared + C::kDsEmpty + 8 * free, free == 0 ? again : again ^ 1);
    } else {
      release(C::kKEmpty + 8 * place);
      wait_products<0>();
      release(C::kQEmpty + 8 * ((end - 1) % 2));
    }
    pin(dk), pin(dv);
    // Waits until dQ has left the buffer that dK takes.
    if constexpr (C::kDeterministic && !C::kIndependent)
      wait(shared + C::kDqEmpty + 8 * ((end - 1) % C::kAdders), (end - 1) / C::kAdders & 1);
    else if (!C::kIndependent && lane == 0)
      wait_stores_read();
    __syncwarp();
    // The other warpgroup has multiplied with this one's dS.
    if constexpr (!C::kCarries) named_sync(kConsumersMeet, kConsumerThreads);
    begin = end;
    if constexpr (C::kHeadSplits) return store_split(dk, dv);
    if constexpr (C::kQuerySplits)
      if (!combine_query_splits(tile, dk, dv)) return;
    // Stores through the warp's own rows of dS, and of dQ if that has a buffer; transposed: through an eighth of each.
    constexpr int kPanel = C::kTransposed ? 2048 : C::kPanelK;
    int first = group * 64 + warp * 16;
    own_register(first);  // computes addresses here instead of keeping them across the steps
    const uint32_t to_v = shared + C::kDs + free * C::kBytesDs + (C::kTransposed ? part_of_dq() : first * 128);
    const uint32_t to_k = C::kIndependent ? to_v + kPanel : shared + C::kDq + part_of_dq();
    stage(dv, 1.f, to_v, kPanel);
    stage(dk, x.scale_k, to_k, C::kIndependent ? kPanel : 2048);
    publish_shared();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int n = 0; n < C::kPanels; ++n) {
        const int row = t.k_row + t.key + first;
        store_tile(x.dv, to_v + n * kPanel, n * 64, row, t.head, t.k_batch);
        store_tile(x.dk, to_k + n * (C::kIndependent ? kPanel : 2048), n * 64, row, t.head, t.k_batch);
      }
      close_stores();
    }
  }
  __device__ void wait_keys(uint32_t round, uint32_t end) {
    if constexpr (!C::kIndependent) behind = end;
    place = round % C::kPlacesK;
    wait(shared + C::kKFull + 8 * place, round / C::kPlacesK & 1), ask_large_logits();
    wait(shared + C::kVFull + 8 * (round % C::kPlacesV), round / C::kPlacesV & 1);
  }
  // Carried over: dQ of the very last step. In a deterministic order there may be none: other CTAs had taken every key
  // tile when this one started.
  __device__ void add_last_dq() {
    if (C::kDeterministic && begin == 0) return;
    wait_last();
    float dq[C::kSumsDq];
    issue_dq(dq, last());
    wait_products<0>();
    pin(dq);
    add_dq(dq, begin - 1, last_query, last_head);
  }
};

}  // namespace attune::sm90
