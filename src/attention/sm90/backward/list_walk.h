// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper with block lists and persistent CTAs. One thread walks the lists and publishes what a
// step visits; another loads it. With 24 registers, one thread cannot do both. Requires one query head per KV head.
#pragma once
#include "attention/sm90/backward/prepare_ahead.h"
#include "attention/sm90/backward/producer.h"

namespace attune::sm90 {

template <class C>
__device__ WalkedVisit& walked_visit(uint32_t shared, uint32_t step) {
  return static_cast<WalkedVisit*>(__cvta_shared_to_generic(shared + C::kWalkedVisits))[step % kVisitsAhead];
}

// Takes key tiles as persistent CTAs do, a few steps ahead of the products. A step is published when the next one
// begins, because it may be the last of its tile.
template <class C>
struct ListWalker {
  const typename C::Params& x;
  const uint32_t shared;
  uint32_t step = 0;
  int round = 0;  // key tiles so far
  int marks = 0;
  bool open = false;  // a step that is not published yet

  __device__ WalkedVisit& now() const { return walked_visit<C>(shared, step); }
  // The current key tile, in shared memory.
  __device__ WalkedKeys& own() const {
    return *static_cast<WalkedKeys*>(__cvta_shared_to_generic(shared + C::kWalked));
  }
  __device__ void find(int tile) const {
    const KeyTile t = find_work<C>(x, tile);
    own() = {t.head, t.batch, t.number, t.start, t.stop};
  }

  __device__ void begin(int query, int head, int tile) {
    wait(shared + C::kVisitEmpty + 8 * (step % kVisitsAhead), (step / kVisitsAhead & 1) ^ 1);
    now() = {{query, head, 0}, own().batch, tile, round};
    open = true;
  }
  __device__ void tell(int more) {
    now().marks = marks | more;
    arrive(shared + C::kVisitFull + 8 * (step % kVisitsAhead));
    ++step, marks = 0, open = false;
  }
  __device__ BlockList list(int batch, int head) const {
    return {x.blocks, x.list_begin + batch * x.list_batch + head * x.list_head, x.list_row};
  }
  // True for a tile that would end last if it started in its turn.
  __device__ bool is_long(int tile) const {
    const KeyTile t = find_work<C>(x, tile);
    return list(t.batch, t.head).count(t.number) > x.most_entries;
  }
  // Visits the query tiles within the band.
  __device__ void walk(int tile, int at, int end) {
#pragma unroll 1
    for (; at < end; ++at) {
      const int64_t first = int64_t(x.list_row[at]) * x.blocks.q;
      if (first < 0 || first >= own().stop) continue;  // not a block of this sequence: the list is not validated
      const int stop = int(min(first + x.blocks.q, int64_t(own().stop)));
#pragma unroll 1
      for (int query = int(max(first, int64_t(own().start))); query < stop; query += C::kTileQ) {
        if (open) tell(0);
        begin(query, own().head, tile);
      }
    }
  }
  __device__ void take(int tile, bool wants_long) {
    find(tile);
    const BlockList of = list(own().batch, own().head);
    const int at = of.entry(own().number), count = of.count(own().number);
    if ((count > x.most_entries) != wants_long) return;
    marks = ListedVisit::kBegins;
    walk(tile, at, at + count);
    if (open) {
      tell(ListedVisit::kListEnd);
    } else {
      begin(0, 0, tile);
      tell(ListedVisit::kListEnd | ListedVisit::kNothing);
    }
    ++round;
  }
  // One tile out of each `grid_size()`, with an offset that varies: long tiles lie at regular distances, such as the
  // first of every head.
  __device__ int share(int n) const {
    const uint32_t turn = uint32_t(n) * 2654435761u >> 16;
    return n * grid_size() + int((blockIdx.x + turn) % uint32_t(grid_size()));
  }
  // Run by a warp, whose first lane walks. A CTA starts the long tiles of its share first.
  __device__ void run() {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
    for (int n = 0; x.most_entries < INT32_MAX && n * grid_size() < works<C>(x); n += 32) {
      const int tile = share(n + lane);
      uint32_t longs = __ballot_sync(~0u, tile < works<C>(x) && is_long(tile));
#pragma unroll 1
      for (; lane == 0 && longs; longs &= longs - 1) take(share(n + __ffs(int(longs)) - 1), true);
    }
    if (lane > 0) return;
    int tile = int(blockIdx.x);
#pragma unroll 1
    for (; tile < works<C>(x); tile = grid_size() + atomicAdd(x.taken, 1)) take(tile, false);
    begin(0, 0, tile);
    tell(0);
  }
};

template <class C>
struct WalkedProducer {
  const typename C::Params& x;
  const uint32_t shared;

  // The visit is visible to the consumers when q arrives.
  __device__ void tell(uint32_t step, const WalkedVisit& v) const {
    const uint32_t stage = step % C::kStages;
    wait(shared + C::kQEmpty + 8 * stage, (step / C::kStages & 1) ^ 1);
    listed_visit<C>(shared, stage) = v;
  }
  __device__ void load(uint32_t step, const WalkedVisit& v) const {
    KeyTile t{};
    t.batch = t.q_batch = v.batch;
    BackwardProducer<C>{x, shared, t}.load_step(step, v.query, v.head, false);
  }
  __device__ void load_nothing(uint32_t step) const {
    const uint32_t stage = step % C::kStages;
    arrive(shared + C::kQFull + 8 * stage);
    wait(shared + C::kOEmpty + 8 * stage, (step / C::kStages & 1) ^ 1), arrive(shared + C::kOFull + 8 * stage);
  }
  __device__ void run() const {
    uint32_t step = 0;
#pragma unroll 1
    for (;; ++step) {
      wait(shared + C::kVisitFull + 8 * (step % kVisitsAhead), step / kVisitsAhead & 1);
      const WalkedVisit& v = walked_visit<C>(shared, step);
      if (v.tile >= works<C>(x)) break;
      if (v.marks & ListedVisit::kBegins) {
        const KeyTile t = find_work<C>(x, v.tile);
        wait_ready<C>(x, t);
        BackwardProducer<C>{x, shared, t}.load_round(v.round, v.tile);
      }
      tell(step, v);
      if (v.marks & ListedVisit::kNothing) load_nothing(step);
      else load(step, v);
      arrive(shared + C::kVisitEmpty + 8 * (step % kVisitsAhead));
    }
    const KeyTile none{};
    BackwardProducer<C>{x, shared, none}.tell_tile(uint32_t(walked_visit<C>(shared, step).round), works<C>(x));
  }
};

// The warps of the producer warpgroup.
template <class C>
__device__ void walk_lists(const typename C::Params& x, uint32_t shared) {
  if (threadIdx.x >= kListHelpers) return prepare_others<C>(x);
  if (threadIdx.x >= kHelpers) return ListWalker<C>{x, shared}.run();
  if (threadIdx.x == kLoader) WalkedProducer<C>{x, shared}.run();
}

}  // namespace attune::sm90
