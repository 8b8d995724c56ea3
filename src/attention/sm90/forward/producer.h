// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: the thread that takes query tiles and loads q, and the thread that streams k and v.
// They are two threads, in separate warps, because a producer thread may have only 24 registers.
#pragma once
#include "attention/sm90/forward/config.h"
#include "machine/sm80/memory.h"
#include "machine/sm80/dependent_launch.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/tma.h"

namespace attune::sm90 {

// Takes the next number. The counter's initial content is arbitrary: the first thread to arrive sets it to this
// launch's epoch.
__device__ inline int take(unsigned long long* counter, unsigned long long epoch) {
  unsigned long long now = *static_cast<volatile unsigned long long*>(counter);
  while (now >> kCountBits != epoch) {
    const unsigned long long before = atomicCAS(counter, now, epoch << kCountBits);
    if (before == now) break;
    now = before;
  }
  return int(atomicAdd(counter, 1) & ((1 << kCountBits) - 1));
}
// Takes from a counter that already has this launch's epoch: one atomic, waited for where its result is used.
__device__ inline unsigned long long take_next(unsigned long long* counter) { return atomicAdd(counter, 1); }

// The next query tile is requested this many key tiles before the last one of a query tile: the answer takes a step or
// two.
constexpr int kNearEnd = 4;

// The tile with number `index` in the order of the schedule, for `per_head` tiles per head.
template <class C>
__device__ void find_tile(const ForwardParams& x, int per_head, int index, QueryTile* to) {
  const int per_section = x.section_heads * per_head;
  const int section = index / per_section, rest = index - section * per_section;
  const int first_head = section * x.section_heads, heads_here = min(x.section_heads, x.heads_total - first_head);
  const int rank = rest / heads_here, global_head = first_head + rest - rank * heads_here;
  if (x.table) {
#pragma unroll
    for (int n = 0; n < C::kTileBytes; n += 16)
      sm80::copy16(shared_address(to) + n, reinterpret_cast<const char*>(x.table + rank) + n);
    sm80::close_group();
    sm80::wait_groups<0>();
    if (!C::kListed) to->head = global_head;  // a table of lengths covers one head
    to->k_head = min(to->head / x.heads_per_key, x.k_heads - 1), to->k_batch = min(to->k_batch, x.k_batches - 1);
    return;
  }
  const int row = (x.longest_first ? per_head - 1 - rank : rank) * C::kTileQ, rows = min(C::kTileQ, x.rows - row);
  to->row = to->query = row, to->end = x.rows, to->keys = x.keys, to->k_row = 0;
  const int batch = global_head / x.heads, head = global_head - batch * x.heads;
  to->batch = to->sequence = batch, to->head = head * x.packed;
  to->k_head = min(head / x.heads_per_key, x.k_heads - 1), to->k_batch = min(batch, x.k_batches - 1);
  const int from = row + x.offset - x.left, until = row + x.offset + x.right + 1;
  const int end = min(x.keys, until + rows - 1), begin = max(0, from);  // range of visible keys
  to->from = from, to->until = until, to->column = 0;
  if (C::kOptions) to->stand = row + x.offset;
  const bool any = end > begin;  // otherwise one fully masked key tile
  to->first = any ? begin / C::kTileK : 0, to->last = any ? (end - 1) / C::kTileK : 0;
}

template <class C>
__device__ QueryTile* tile_slot(uint32_t shared, uint32_t n) {
  return static_cast<QueryTile*>(__cvta_shared_to_generic(shared + C::kTiles + C::kTileBytes * (n % 4)));
}
template <int Panels>
__device__ void load_panels(uint32_t shared, const CUtensorMap& map, int to, int full, int panel, int row, int head,
                            int batch, Keep keep) {
  arrive_expect(shared + full, panel * Panels);
#pragma unroll
  for (int n = 0; n < Panels; ++n)
    load_tile(shared + to + n * panel, map, shared + full, n * 64, row, head, batch, keep);
}

template <class C>
struct TileScheduler {
  const ForwardParams& x;
  const uint32_t shared;

  // The previous kernel is building the table; the kernel before that one has ended.
  __device__ bool ahead() const { return C::kAhead && x.lists.count; }
  __device__ int tiles_of_head() const {
    if (ahead()) return x.lists.count;
    return x.table ? __ldcg(x.table_tiles) : x.tiles_of_head;  // bypasses L1, which may be stale
  }
  __device__ void find_first() const {
    if (!ahead() || int(blockIdx.x) >= x.lists.count) return;
    QueryTile* const to = tile_slot<C>(shared, 0);
    *to = x.lists.tile(int(blockIdx.x));
    to->k_head = min(to->k_head, x.k_heads - 1), to->k_batch = min(to->k_batch, x.k_batches - 1);
  }
  __device__ void run() const {
    prefetch_map(x.q);
    find_first();
    const int per_head = tiles_of_head();
    // The first two tiles of a CTA are static: a long one, then a short one from the end. Short tiles of equal length
    // are all static. Stream-K tiles come last.
    const int every = per_head * x.heads_total, all = every - (C::kStreamK ? x.stream_k.tiles : 0),
              known = 2 * int(gridDim.x);
    const bool more = !x.fixed && all > known;
    unsigned long long taken = 0;
    uint32_t tiles = 0;
    int partials = 0;  // parts of stream-K tiles so far
    for (;; ++tiles) {
      const uint32_t q = tiles % C::kQStages, empty = shared + C::kQEmpty + 8 * q;
      const uint32_t parity = (tiles / C::kQStages & 1) ^ 1;
      QueryTile* t = tile_slot<C>(shared, tiles);
      // With one q stage, the next tile is published before its q has space, so that its keys are on their way. Tile n
      // takes the slot of tile n - 4, whose rows have left when all warpgroups have computed the scores of n - 2.
      if (C::kQStages > 1) wait(empty, parity);
      const int asked = more ? known + int(taken & ((1 << kCountBits) - 1)) : all;
      const int back = tiles == 1 ? known - 1 - int(blockIdx.x) : asked;
      int index = tiles == 0 || x.fixed ? int(tiles * gridDim.x + blockIdx.x) : back;
      if (C::kStreamK && x.stream_k.tiles && index >= all) index = all + x.stream_k.tile(blockIdx.x, partials++);
      const bool over = index >= every;
      if (over) t->last = -1;
      else if (tiles > 0 || !ahead()) find_tile<C>(x, per_head, index, t);
      if (C::kStreamK && !over && index >= all) {
        // Key tiles are counted from the last one that the query tile sees. With a band there may be none: then it is
        // one masked key tile.
        const StreamK::KeyTiles keys = x.stream_k.key_tiles(blockIdx.x, index - all);
        const int end = t->last, up = end - (x.stream_k.steps - 1);
        const bool some = keys.last + up >= t->first;
        t->first = some ? max(t->first, keys.first + up) : end + 1, t->last = some ? keys.last + up : end + 1;
        t->column = 1 + StreamK::place(blockIdx.x, index - all);
      }
      if (C::kOutThroughQ && !over) t->last = max(t->last, t->first + 1);
      arrive(shared + C::kTileReady + 8 * (tiles % 4));
      if (C::kQStages == 1) wait(empty, parity);
      if (over) break;
      load_panels<C::kPanels>(shared, x.q, C::kQ + q * C::kBytesQ, C::kQFull + 8 * q, C::kPanelQ, t->row, t->head,
                              t->batch, Keep::first_to_go);
      // Not before the end of this tile is near: an idle CTA cannot have a tile that is taken early, which costs a
      // causal mask up to an eighth.
      wait(shared + C::kPrefetchNext + 8 * (tiles % 4), tiles / 4 & 1);
      if (tiles == 0 && ahead()) sm80::wait_for_previous();
      if (more && tiles > 0) taken = tiles == 1 ? take(x.counters, x.epoch) : take_next(x.counters);
    }
    arrive(shared + C::kQFull + 8 * (tiles % C::kQStages));
    // The last CTA clears this epoch: a graph launches the kernel again with the same one.
    if (more && take(x.counters + 1, x.epoch) == int(gridDim.x) - 1) x.counters[0] = 0, x.counters[1] = 0;
  }
};

template <class C>
struct Producer {
  const ForwardParams& x;
  const uint32_t shared;

  // Loads v at the end of a sequence inside the tensor. The rows behind it belong to another sequence and may be NaN,
  // which a weight of zero does not cancel. The sequence's own rows come in boxes of a few rows, the rest as zeros from
  // outside the tensor.
  __device__ void load_end(uint32_t slot, const QueryTile& t, int key) const {
    const uint32_t full = shared + C::kVFull + 8 * slot;
    arrive_expect(full, C::kBytesV);
    const int there = t.keys - key;
#pragma unroll 1
    for (int at = 0; at < C::kTileK;) {
      const int open = (at < there ? there : C::kTileK) - at;
      const int box = open >= end_box_rows(0) ? 0 : open >= end_box_rows(1) ? 1 : 2;
#pragma unroll 1
      for (int n = 0; n < C::kPanelsV; ++n)
        load_tile(shared + C::kV + slot * C::kBytesV + n * C::kPanelK + at * 128, x.v_end[box], full, n * 64,
                  at < there ? t.k_row + key + at : x.k_rows, t.k_head, t.k_batch, Keep::last_to_go);
      at += end_box_rows(box);
    }
  }
  __device__ void wait_k(uint32_t step) const {
    wait(shared + C::kKEmpty + 8 * (step % C::kStages), (step / C::kStages & 1) ^ 1);
  }
  __device__ void load_v(uint32_t step, const QueryTile& t, int key) const {
    const uint32_t slot = step % C::kStages;
    wait(shared + C::kVEmpty + 8 * slot, (step / C::kStages & 1) ^ 1);
    if (x.table && key + C::kTileK > t.keys && t.k_row + t.keys < x.k_rows) return load_end(slot, t, key);
    load_panels<C::kPanelsV>(shared, x.v, C::kV + slot * C::kBytesV, C::kVFull + 8 * slot, C::kPanelK, t.k_row + key,
                             t.k_head, t.k_batch, Keep::last_to_go);
  }
  // With a list: the key block at position j of the tile's key tiles. The caller maps entries outside the sequence to a
  // tile past all keys.
  __device__ int block_at(const QueryTile& t, int j) const {
    return t.keys > 0 ? __ldcg(x.column + t.column + j / C::kKeyTilesPerBlock) : 0;
  }
  __device__ void run() const {
    prefetch_map(x.k), prefetch_map(x.v);
    uint32_t step = 0, before = 0;  // v is one step behind k: the order in which they are needed
    int before_key = 0;
    bool over = false, ahead = false;
    for (uint32_t tiles = 0; !over; ++tiles) {
      const QueryTile* t = tile_slot<C>(shared, tiles);
      wait(shared + C::kTileReady + 8 * (tiles % 4), tiles / 4 & 1);
      int j = t->last;
      over = j < 0;
      const int near = C::kListed ? j : min(j, t->first + kNearEnd);  // lists leave no register for it
      int block = C::kListed && !over ? block_at(*t, j) : 0;
#pragma unroll 1
      do {
        const uint32_t k = step % C::kStages;
        int number = j;
        if (j == near) arrive(shared + C::kPrefetchNext + 8 * (tiles % 4));
        if (!over) {
          if (C::kListed) {
            const uint32_t behind = uint32_t(t->keys + C::kTileK - 1) / C::kTileK;
            number = int(min(min(uint32_t(block), behind) * C::kKeyTilesPerBlock + j % C::kKeyTilesPerBlock, behind));
            if (j > t->first) block = block_at(*t, j - 1);  // loads while this one waits
          }
          wait_k(step);
          if (C::kListed) *static_cast<int*>(__cvta_shared_to_generic(shared + C::kNumbers + 4 * k)) = number;
          load_panels<C::kPanels>(shared, x.k, C::kK + k * C::kBytesK, C::kKFull + 8 * k, C::kPanelK,
                                  t->k_row + number * C::kTileK, t->k_head, t->k_batch, Keep::last_to_go);
        }
        if (step > 0 && !ahead) load_v(step - 1, *tile_slot<C>(shared, before), before_key);
        before = tiles, before_key = number * C::kTileK, ++step;
        ahead = !C::kListed && !over && tiles == 0 && j == t->first;  // the second tile is not known yet
        if (ahead) load_v(step - 1, *t, before_key);
      } while (!over && --j >= t->first);
    }
  }
};

}  // namespace attune::sm90
