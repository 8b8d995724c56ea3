// Forward attention for Hopper: the thread that takes tiles of queries and streams q, k and v into shared memory.
#pragma once
#include "attention/forward.sm90.shape.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/tma.h"

namespace attune::sm90 {

// A number that is taken once: the first to come finds memory of any content and makes it this launch's.
__device__ inline int take(unsigned long long* counter, unsigned long long epoch) {
  unsigned long long now = *static_cast<volatile unsigned long long*>(counter);
  while (now >> kCountBits != epoch) {
    const unsigned long long before = atomicCAS(counter, now, epoch << kCountBits);
    if (before == now) break;
    now = before;
  }
  return int(atomicAdd(counter, 1) & ((1 << kCountBits) - 1));
}
// The same of a counter that is this launch's already: one request, whose answer is waited for where it is used.
__device__ inline unsigned long long take_next(unsigned long long* counter) { return atomicAdd(counter, 1); }

template <class C>
__device__ QueryTile tile_of(const ForwardParams& x, int index) {
  const int per_section = x.section_heads * x.tiles_of_head;
  const int section = index / per_section, rest = index - section * per_section;
  const int first_head = section * x.section_heads, heads_here = min(x.section_heads, x.batch * x.heads - first_head);
  const int rank = rest / heads_here, unit = first_head + rest - rank * heads_here;
  QueryTile t;
  t.row = (x.longest_first ? x.tiles_of_head - 1 - rank : rank) * C::kTileQ;
  t.batch = unit / x.heads, t.head = unit - t.batch * x.heads;
  const int end = min(x.keys, min(t.row + C::kTileQ, x.rows) + x.offset + x.right);  // one past the last key seen
  const int begin = max(0, t.row + x.offset - x.left);
  t.last = (end - 1) / C::kTileK, t.first = begin / C::kTileK;
  if (end <= begin) t.first = t.last = 0;  // nothing is seen: one key tile, all of it hidden
  return t;
}

template <class C>
struct Producer {
  const ForwardParams& x;
  const uint32_t shared;

  template <int Panels>
  __device__ void load(const CUtensorMap& map, int to, int full, int panel, int row, int head, int batch,
                       Keep keep) const {
    arrive_expect(shared + full, panel * Panels);
#pragma unroll
    for (int n = 0; n < Panels; ++n)
      load_tile(shared + to + n * panel, map, shared + full, n * 64, row, head, batch, keep);
  }
  __device__ void run() const {
    prefetch_map(x.q), prefetch_map(x.k), prefetch_map(x.v);
    uint32_t step = 0, v_step = 0, tiles = 0;
    int v_row = 0, v_head = 0, v_batch = 0;
    const auto load_v = [&] {
      const uint32_t slot = v_step % C::kStages;
      wait(shared + C::kVEmpty + 8 * slot, (v_step / C::kStages & 1) ^ 1);
      load<C::kPanelsV>(x.v, C::kV + slot * C::kBytesV, C::kVFull + 8 * slot, C::kPanelK, v_row, v_head, v_batch,
                        Keep::last_to_go);
      ++v_step;
    };
    const bool more = x.tiles > int(gridDim.x);  // than one for each block
    for (int index = blockIdx.x;; ++tiles) {
      const uint32_t q = tiles % C::kQStages;
      QueryTile* slot = reinterpret_cast<QueryTile*>(__cvta_shared_to_generic(shared + C::kTiles + 32 * (tiles % 4)));
      wait(shared + C::kQEmpty + 8 * q, (tiles / C::kQStages & 1) ^ 1);
      if (index >= x.tiles) {
        slot->last = -1;
        arrive(shared + C::kQFull + 8 * q);
        break;
      }
      const QueryTile t = tile_of<C>(x, index);
      *slot = t;
      load<C::kPanels>(x.q, C::kQ + q * C::kBytesQ, C::kQFull + 8 * q, C::kPanelQ, t.row, t.head, t.batch,
                       Keep::first_to_go);
      const int head = t.head / x.heads_per_key;
      // When no copy can be asked for at once any more. Only the first answer is waited for here.
      unsigned long long next = 0;
      const int pause = max(t.first, t.last + 1 - C::kStages);
      for (int j = t.last; j >= t.first; --j, ++step) {
        const uint32_t k = step % C::kStages;
        wait(shared + C::kKEmpty + 8 * k, (step / C::kStages & 1) ^ 1);
        load<C::kPanels>(x.k, C::kK + k * C::kBytesK, C::kKFull + 8 * k, C::kPanelK, j * C::kTileK, head, t.batch,
                         Keep::last_to_go);
        if (v_step < step) load_v();  // a step behind k: the order in which they are asked for
        v_row = j * C::kTileK, v_head = head, v_batch = t.batch;
        const bool idle = j == pause && tiles == 0, q_is_next = j == t.first && C::kQStages == 1;
        if (idle || q_is_next) load_v();
        if (more && j == pause) next = idle ? take(x.counters, x.epoch) : take_next(x.counters);
      }
      index = more ? int(gridDim.x) + int(next & ((1 << kCountBits) - 1)) : x.tiles;
    }
    if (v_step < step) load_v();
    // The last block leaves nothing of this epoch behind: a graph launches it again.
    if (more && take(x.counters + 1, x.epoch) == int(gridDim.x) - 1) x.counters[0] = 0, x.counters[1] = 0;
  }
};

}  // namespace attune::sm90
