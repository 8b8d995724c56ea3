// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: the producer threads of sm90/backward/kernel.h. One streams keys, Q, dO and the rows'
// statistics; in a deterministic order others add dQ to memory. This file also defines how a CTA finds its keys.
#pragma once
#include "attention/sm90/backward/config.h"
#include "machine/sm80/memory.h"
#include "machine/sm80/dependent_launch.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/scalar.h"
#include "machine/sm90/tma.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

// A key tile. Without a table, consumers take the lengths from the launch parameters, not from here.
template <class C>
__device__ KeyTile keys_of(const typename C::Params& x, int tile, int head_index) {
  KeyTile t;
  if constexpr (C::kTabled) {
    const int4* from = reinterpret_cast<const int4*>(x.table + tile);  // bypasses L1, which may be stale
    for (int n = 0; n < int(sizeof(KeyTile) / 16); ++n) reinterpret_cast<int4*>(&t)[n] = __ldcg(from + n);
    t.head = head_index;
  } else {
    const int batch = head_index / x.heads_kv;
    t = {.key = 0, .head = head_index % x.heads_kv, .batch = batch, .rows = x.rows, .keys = x.keys,
         .low = x.low, .high = x.high, .q_row = 0, .q_batch = batch, .k_row = 0, .k_batch = batch};
    cut_key_tile(t, C::kDeterministic ? x.tiles - 1 - tile : tile, C::kTileQ, C::kTileK, C::kGrain);
  }
  return t;
}
// The keys of a CTA.
template <class C>
__device__ KeyTile find_keys(const typename C::Params& x, int block) {
  const int per_section = x.section * x.tiles, section = block / per_section;
  const int rest = block - section * per_section, here = min(x.section, x.heads_total - section * x.section);
  const int tile = rest / here;
  return keys_of<C>(x, tile, section * x.section + rest - tile * here);
}
// Work items of CTAs that take tiles from a counter: their number, query splits counted, and the n-th.
template <class C>
__device__ int works(const typename C::Params& x) {
  const int tiles = x.tiles * x.heads_total;
  return C::kQuerySplits ? tiles + x.query_splits.divided * (x.query_splits.each - 1) : tiles;
}
template <class C>
__device__ KeyTile find_work(const typename C::Params& x, int n) {
  if constexpr (!C::kQuerySplits) return find_keys<C>(x, n);
  const int begin = x.query_splits.begin, divided = x.query_splits.divided, each = x.query_splits.each;
  n -= begin;
  const int ahead = n < 0 ? n : n < divided * each ? int(uint32_t(n) / uint32_t(each)) : n - divided * (each - 1);
  KeyTile t = find_keys<C>(x, begin + ahead);
  own_register(n);  // recomputes what depends on it instead of keeping it
  if (uint32_t(n) < uint32_t(divided * each)) cut_query_split(t, int(uint32_t(n) % uint32_t(each)), each, C::kTileQ);
  return t;
}

// Persistent: the round-th tile of a CTA, as announced by its producer. Read by the lane that releases the slot.
template <class C>
__device__ uint32_t told_to_lane(uint32_t shared, uint32_t round) {
  const uint32_t at = round % C::kPlacesK;
  wait(shared + C::kTileFull + 8 * at, round / C::kPlacesK & 1);
  return threadIdx.x % 32 == 0 ? load_shared(shared + C::kTile + 4 * at) : 0;
}
template <class C>
__device__ int told_tile(uint32_t shared, uint32_t round) {
  const uint32_t tile = told_to_lane<C>(shared, round);
  return int(__reduce_or_sync(~0u, tile));  // into a uniform register, unlike a shuffle
}

// Lists: what the step of a stage visits.
template <class C>
__device__ KeyVisit* visit(uint32_t shared, uint32_t stage) {
  return static_cast<KeyVisit*>(__cvta_shared_to_generic(shared + C::kVisits + 8 * stage));
}

template <class C>
__device__ ListedVisit& listed_visit(uint32_t shared, uint32_t stage) {
  return static_cast<ListedVisit*>(__cvta_shared_to_generic(shared + C::kListedVisits))[stage];
}

template <class C>
struct BackwardProducer {
  const typename C::Params& x;
  const uint32_t shared;
  const KeyTile& t;

  template <int Bytes>
  __device__ void load(const CUtensorMap& map, int to, uint32_t full, int row, int head, int batch, Keep keep) const {
#pragma unroll
    for (int n = 0; n < C::kPanels; ++n)
      load_tile(shared + to + n * (Bytes / C::kPanels), map, full, n * 64, row, head, batch, keep);
  }
  // Loads the end of a sequence inside the tensor. The rows behind it belong to another sequence and may be NaN, which
  // a weight of zero does not cancel. The sequence's own rows come in boxes of a few rows, the rest as zeros from
  // outside the tensor.
  template <int Rows>
  __device__ void load_end(const CUtensorMap (&boxes)[kEndBoxes], int to, uint32_t full, int row, int there,
                           int outside, int head, int batch) const {
#pragma unroll 1
    for (int at = 0; at < Rows;) {
      const int open = (at < there ? there : Rows) - at;
      const int box = open >= end_box_rows(0) ? 0 : open >= end_box_rows(1) ? 1 : 2;
#pragma unroll 1
      for (int n = 0; n < C::kPanels; ++n)
        load_tile(shared + to + n * Rows * 128 + at * 128, boxes[box], full, n * 64, at < there ? row + at : outside,
                  head, batch, Keep::last_to_go);
      at += end_box_rows(box);
    }
  }
  __device__ int head_of_keys() const {
    if constexpr (!C::kHeadSplits) return t.head;
    int head = t.head;
    own_register(head);  // does not keep what depends on it
    return int(__umulhi(uint32_t(head), x.inverse_splits));
  }
  __device__ void load_keys(uint32_t full, int to = C::kK) const {
    if constexpr (C::kTabled)
      if (t.key + C::kTileK > t.keys && t.k_row + t.keys < x.rows_k)
        return load_end<C::kTileK>(x.k_end, C::kK, full, t.k_row + t.key, t.keys - t.key, x.rows_k, t.head, t.k_batch);
    load<C::kBytesK>(x.k, to, full, t.k_row + t.key, head_of_keys(), t.k_batch, Keep::first_to_go);
  }
  // False if the tile does not need it.
  __device__ bool load_end_of_queries(bool d_out, int to, uint32_t full, int query, int head) const {
    if constexpr (C::kTabled) {
      if (query + C::kTileQ <= t.rows || t.q_row + t.rows >= x.rows_q) return false;
      load_end<C::kTileQ>(d_out ? x.d_out_end : x.q_end, to, full, t.q_row + query, t.rows - query, x.rows_q, head,
                          t.q_batch);
      return true;
    }
    return false;
  }
  __device__ void load_queries(bool d_out, int to, uint32_t full, int query, int head) const {
    if (load_end_of_queries(d_out, to, full, query, head)) return;
    load<C::kBytesQ>(d_out ? x.d_out : x.q, to, full, t.q_row + query, head, t.q_batch, Keep::last_to_go);
  }
  __device__ void wait_place(uint32_t round) const {
    wait(shared + C::kKEmpty + 8 * (round % C::kPlacesK), (round / C::kPlacesK & 1) ^ 1);
  }
  // Persistent: announces the tile of the CTA's round-th keys; none after the last. Its slot is released with the keys.
  __device__ void tell_tile(uint32_t round, int tile) const {
    const uint32_t place = round % C::kPlacesK;
    wait_place(round);
    sm80::store_shared(shared + C::kTile + 4 * place, uint32_t(tile));
    arrive(shared + C::kTileFull + 8 * place);
  }
  __device__ void load_values(uint32_t round) const {
    const uint32_t place = round % C::kPlacesV, full = shared + C::kVFull + 8 * place;
    wait(shared + C::kVEmpty + 8 * place, (round / C::kPlacesV & 1) ^ 1);
    arrive_expect(full, C::kBytesK);
    load<C::kBytesK>(x.v, C::kV + int(place) * C::kBytesK, full, t.k_row + t.key, head_of_keys(), t.k_batch,
                     Keep::first_to_go);
  }
  // Prefetches into L2. The buffers stay occupied for two more steps, and no CTA has read these keys from memory yet.
  __device__ void prefetch_keys() const {
#pragma unroll
    for (int n = 0; n < C::kPanels; ++n) {
      prefetch_tile(x.v, n * 64, t.k_row + t.key, head_of_keys(), t.k_batch);
      prefetch_tile(x.k, n * 64, t.k_row + t.key, head_of_keys(), t.k_batch);
    }
  }
  // Loads in the order in which buffers become free: before the first step if K has two, otherwise after its q.
  __device__ void load_round(int round_here, int tile) const {
    own_register(round_here);  // does not keep what depends on it
    const uint32_t round = uint32_t(round_here);
    const uint32_t place = round % C::kPlacesK, full = shared + C::kKFull + 8 * place;
    if constexpr (C::kPlacesK == 1) load_values(round);  // its release follows the read of the large-logits flag
    else wait_place(round);
    sm80::store_shared(shared + C::kLargeLogitsOfTile + 4 * place, sm80::load_mark(x.large_logits) == x.launch);
    tell_tile(round, tile);
    arrive_expect(full, C::kBytesK);
    load_keys(full, C::kK + int(place) * C::kBytesK);
    if constexpr (C::kPlacesK > 1) load_values(round);
  }
  // Step `step` of the CTA. `first`: the first one of its `round`-th keys.
  __device__ void load_step(uint32_t step, int query, int h, bool first, uint32_t round = 0, int tile = 0) const {
    const uint32_t keys = shared + C::kKFull;
    const uint32_t stage = step % C::kStages, parity = (step / C::kStages & 1) ^ 1;
    const uint32_t q = shared + C::kQFull + 8 * stage, o = shared + C::kOFull + 8 * stage;
    wait(shared + C::kQEmpty + 8 * stage, parity);
    if constexpr (C::kListed && !C::kPersistent) *visit<C>(shared, stage) = {query, h};
    arrive_expect(q, C::kBytesQ + C::kBytesStats);
    load_queries(false, C::kQ + stage * C::kBytesQ, q, query, h);
    load_tile(shared + C::kStats + stage * C::kBytesStats, x.stats, q, 2 * query, h, t.batch, 0, Keep::last_to_go);
    if (C::kPersistent && C::kPlacesK == 1 && first) load_round(int(round), tile);
    // Keys of other sequences only affect rows that are not stored.
    if (!C::kPersistent && first)
      load<C::kBytesK>(x.v, C::kV, keys, t.k_row + t.key, head_of_keys(), t.k_batch, Keep::first_to_go);
    wait(shared + C::kOEmpty + 8 * stage, parity);
    arrive_expect(o, C::kBytesQ);
    load_queries(true, C::kO + stage * C::kBytesQ, o, query, h);
  }
  __device__ void run() const {
    const uint32_t keys = shared + C::kKFull;
    arrive_expect(keys, 2 * C::kBytesK);
    load_keys(keys);
    uint32_t step = 0;
    for (int h = t.head * x.group; h < (t.head + 1) * x.group; ++h)
      for (int query = t.start; query != t.stop; query += C::kTileQ, ++step) load_step(step, query, h, step == 0);
  }
  __device__ int behind_heads() const {
    int head = t.head;
    if constexpr (C::kHeadSplits) own_register(head);  // recomputes the product instead of keeping it
    return (head + 1) * x.group;
  }
  // Returns the step after its last.
  __device__ uint32_t run_persistent(uint32_t step, uint32_t round, int tile) const {
    if constexpr (C::kPlacesK > 1) load_round(int(round), tile);
    else prefetch_keys();
    for (int h = t.head * x.group; h < behind_heads(); ++h)
      for (int query = t.start; query != t.stop; query += C::kTileQ, ++step) {
        // The number of the first step would be one register too many.
        const bool first = query == t.start && h == t.head * x.group;
        load_step(step, query, h, first, round, tile);
      }
    return step;
  }
  // Query tiles from lists: those within the band, each once.
  __device__ void run_listed() const {
    uint32_t step = 0;
    for (int h = t.head * x.group; h < (t.head + 1) * x.group; ++h) {
      const BlockList list{x.blocks, x.list_begin + t.batch * x.list_batch + h * x.list_head, x.list_row};
      const int count = list.count(t.number);
      for (int n = 0; n < count; ++n) {
        const int64_t first = int64_t(list.key_block(t.number, n)) * x.blocks.q;
        for (int64_t query = first; query < first + x.blocks.q; query += C::kTileQ) {
          if (query < t.start || query >= t.stop) continue;
          if (step == 0) {
            arrive_expect(shared + C::kKFull, 2 * C::kBytesK);
            load_keys(shared + C::kKFull);
          }
          load_step(step, int(query), h, step == 0), ++step;
        }
      }
    }
    const uint32_t stage = step % C::kStages;
    wait(shared + C::kQEmpty + 8 * stage, (step / C::kStages & 1) ^ 1);
    *visit<C>(shared, stage) = {-1, 0};
    arrive(shared + C::kQFull + 8 * stage);
  }
};

// Deterministic order: a CTA adds to a query tile of dQ after all later key tiles have. The first one stores.
template <class C>
struct DqOrder {
  const typename C::Params& x;
  const uint32_t shared;
  const KeyTile& t;
  const uint32_t number;  // of the thread, among kAdders

  // Row among all heads. Recomputed where it is needed, since there are 24 registers.
  __device__ int64_t row_of(int head, int query) const {
    own_register(query);
    const uint32_t head_index = uint32_t(t.batch) * uint32_t(x.heads) + uint32_t(head);
    return int64_t(uint64_t(head_index) * uint32_t(x.padded)) + uint32_t(query);
  }
  __device__ int* ticket_of(int head, int query) const { return x.tickets + 1 + row_of(head, query) / kTicketRows; }
  __device__ void wait_for_ticket(int head, int query) const {
    const int before = key_tiles_behind(t, query, C::kTileQ, C::kTileK);
    while (sm80::load_count(ticket_of(head, query)) < before) {}
  }
};

// A thread that adds what the warps have handed to it. Two alternate: one waits until its sums are in memory while the
// other adds.
template <class C>
struct BackwardAdder : DqOrder<C> {
  using Base = DqOrder<C>;
  using Base::number, Base::row_of, Base::shared, Base::t, Base::ticket_of, Base::wait_for_ticket, Base::x;

  // Returns the step after its last.
  __device__ uint32_t run(uint32_t step) const {
    for (int h = t.head * x.group; h < (t.head + 1) * x.group; ++h)
      for (int query = t.start; query != t.stop; query += C::kTileQ, ++step) {
        if (step % C::kAdders != number) continue;
        const uint32_t sums = shared + C::kDq + step % C::kPlacesDq * C::kWarps * C::kBytesDq;
        constexpr int kBytes = C::kTileQ * C::kDqPitch * 4;
        wait_for_ticket(h, query), publish_global();
        wait(shared + C::kDqFull + 8 * number, step / C::kAdders & 1);
        float* const to = x.dq + row_of(h, query) * C::kDqPitch;
        if (is_first_to_add(t, query, C::kTileQ, C::kTileK)) store_floats(to, sums, kBytes, Keep::last_to_go);
        else add_floats(to, sums, kBytes, Keep::last_to_go);
        close_stores();
        wait_stores_read();
        arrive(shared + C::kDqEmpty + 8 * number);
        wait_stores();
        sm80::add_count(ticket_of(h, query));
      }
    return step;
  }
};
// For warps that add from registers. The first of two threads announces their ticket; the other, after they have added,
// passes it on to the CTA that waits. The first is at most two steps ahead.
template <class C>
struct TicketKeeper : DqOrder<C> {
  using Base = DqOrder<C>;
  using Base::number, Base::shared, Base::t, Base::ticket_of, Base::wait_for_ticket, Base::x;

  __device__ void announce_ticket(uint32_t step, int head, int query) const {
    const uint32_t place = step % 2;
    wait_for_ticket(head, query);
    wait(shared + C::kDqEmpty + 8 * place, (step / 2 & 1) ^ 1);
    arrive(shared + C::kTicket + 8 * place);
  }
  __device__ void pass_on(uint32_t step, int head, int query) const {
    const uint32_t place = step % 2;
    wait(shared + C::kDqFull + 8 * place, step / 2 & 1);
    arrive(shared + C::kDqEmpty + 8 * place);
    sm80::add_count(ticket_of(head, query));
  }
  // Returns the step after its last.
  __device__ uint32_t run(uint32_t step) const {
    for (int h = t.head * x.group; h < (t.head + 1) * x.group; ++h)
      for (int query = t.start; query != t.stop; query += C::kTileQ, ++step)
        if (number == 0) announce_ticket(step, h, query);
        else pass_on(step, h, query);
    return step;
  }
};
// For a persistent CTA that takes tiles from a counter.
template <class C>
__device__ void add_persistent(const typename C::Params& x, uint32_t shared) {
  const uint32_t number = threadIdx.x / 32 - 1;
  if (threadIdx.x % 32 > 0 || number >= C::kAdders) return;
  uint32_t step = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    const int tile = int(told_to_lane<C>(shared, round));
    if (tile >= works<C>(x)) return;
    arrive(shared + C::kKEmpty + 8 * (round % C::kPlacesK));  // the slot of the number is free when that of its keys is
    const KeyTile t = find_work<C>(x, tile);
    if constexpr (C::kTakesTickets) step = TicketKeeper<C>{x, shared, t, number}.run(step);
    else step = BackwardAdder<C>{x, shared, t, number}.run(step);
  }
}

}  // namespace attune::sm90
