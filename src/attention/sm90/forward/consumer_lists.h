// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper with a block list per warpgroup: its 64 queries are one row of blocks of 64. The key
// tiles of both lists, 64 keys each, form one stream. A tile that both need is loaded once, and each warpgroup skips
// the tiles of the other.
//
// A warpgroup holds v of its last key tile until it has found its next one, which is never further away than there are
// slots. The last key tile of a query tile is multiplied before the search for the next query tile, because one of the
// two lists may be longer by any number of tiles.
#pragma once
#include "attention/sm90/forward/consumer.h"
#include "attention/sm90/forward/producer.h"
#include "attention/tile/list_interleave.h"

namespace attune::sm90 {

// Tag of a key tile: its number, a bit per warpgroup that needs it, and a bit per warpgroup for which it is the last.
struct ListTag {
  static constexpr int kOver = -1;  // not a key tile: there are no more query tiles
  static constexpr int kBits = 4;
  static __device__ int of(int number, bool mine0, bool mine1, bool last0, bool last1) {
    return number << kBits | last1 << 3 | last0 << 2 | mine1 << 1 | int(mine0);
  }
  static __device__ bool mine(int tag, int group) { return tag >> group & 1; }
  static __device__ bool last(int tag, int group) { return tag >> (2 + group) & 1; }
};

template <class C>
struct ListProducer : Producer<C> {
  using Producer<C>::x;
  using Producer<C>::shared;

  // Walks a list from its end: the key tile at position `at`; the list ends below `low`.
  struct Walk {
    int at, low, block;
    __device__ bool open() const { return at >= low; }
  };
  __device__ void look(const QueryTile& t, Walk& w) const {
    if (w.open() && t.keys > 0) w.block = __ldcg(x.column + t.column + (w.at >> x.key_tiles_per_block_shift));
  }
  // An empty list becomes one key tile past all keys.
  __device__ Walk begin(const QueryTile& t, int low, int last) const {
    Walk w{last, low, INT32_MAX};
    look(t, w);
    w.at = max(w.at, low);
    return w;
  }
  // -1 after the last. An entry that is not a block of the sequence also maps past all keys.
  __device__ int number(const QueryTile& t, const Walk& w) const {
    const uint32_t behind = uint32_t(t.keys + C::kTileK - 1) / C::kTileK,
                   rest = w.at & ((1 << x.key_tiles_per_block_shift) - 1);
    return w.open() ? int(min((min(uint32_t(w.block), behind) << x.key_tiles_per_block_shift) + rest, behind)) : -1;
  }

  // Keys and values are loaded by two threads: v waits for the products, k only for the scores.
  template <bool kValues>
  __device__ void run() const {
    prefetch_map(kValues ? x.v : x.k);
    uint32_t step = 0;
    for (uint32_t tiles = 0;; ++tiles) {
      const QueryTile& t = *tile_slot<C>(shared, tiles);
      wait(shared + C::kTileReady + 8 * (tiles % 4), tiles / 4 & 1);
      if (!kValues) arrive(shared + C::kPrefetchNext + 8 * (tiles % 4));
      if (t.last < 0) break;
      Walk a = begin(t, 0, x.one_list ? t.last : t.first - 1), b = begin(t, x.one_list ? 0 : t.first, t.last);
      ListInterleave interleave{.most = C::kStages - 1};
#pragma unroll 1
      for (; a.open() || b.open(); ++step) {
        const int of_a = number(t, a), of_b = number(t, b);
        const auto [for_a, for_b] = interleave.next(of_a, of_b);
        const int here = for_a ? of_a : of_b;
        const int tag = ListTag::of(here, for_a, for_b, for_a && a.at == a.low, for_b && b.at == b.low);
        // The next entries load while this one waits.
        if (for_a) --a.at, look(t, a);
        if (for_b) --b.at, look(t, b);
        if (kValues) {
          this->load_v(step, t, here * C::kTileK);
          continue;
        }
        const uint32_t slot = step % C::kStages;
        this->wait_k(step);
        put(slot, tag);
        load_panels<C::kPanels>(shared, x.k, C::kK + slot * C::kBytesK, C::kKFull + 8 * slot, C::kPanelK,
                                t.k_row + here * C::kTileK, t.k_head, t.k_batch, Keep::last_to_go);
      }
    }
    if (kValues) return;
    this->wait_k(step);
    put(step % C::kStages, ListTag::kOver);
    arrive(shared + C::kKFull + 8 * (step % C::kStages));
  }
  __device__ void put(uint32_t slot, int tag) const {
    *static_cast<int*>(__cvta_shared_to_generic(shared + C::kNumbers + 4 * slot)) = tag;
  }
};

template <class C>
struct ListConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using T = typename C::T;
  using Base::group, Base::number, Base::o, Base::p, Base::rows, Base::s, Base::shared, Base::tiles, Base::x;
  uint32_t step;  // key tiles seen
  int tag;        // of this key tile
  int more;       // 1 if O holds sums

  __device__ uint32_t slot() const { return step % C::kStages; }
  __device__ void wait_full(int barrier, uint32_t n) const {
    wait(shared + barrier + 8 * (n % C::kStages), n / C::kStages & 1);
  }
  // Finds this warpgroup's next key tile, from `step` on. Tiles of the other warpgroup are released; v only after it
  // has arrived, because before that its slot may still hold another key tile.
  __device__ bool seek() {
    for (;; ++step) {
      wait_full(C::kKFull, step);
      tag = this->number_in(int(slot()));
      if (tag == ListTag::kOver) return false;
      if (ListTag::mine(tag, group)) break;
      this->release(C::kKEmpty + 8 * slot());
      wait_full(C::kVFull, step);
      __syncwarp();  // a lane that comes later would find the slot two phases on, and wait forever
      this->release(C::kVEmpty + 8 * slot());
    }
    number = tag >> ListTag::kBits;
    return true;
  }
  // The scores are ready: turns them into weights.
  template <class Score, class Done>
  __device__ void weigh(uint32_t (&to)[C::kTileK / 4], Score& score, bool first_of_rows, Done product_done) {
    pin(s);
    this->release(C::kKEmpty + 8 * slot());
    if (ListTag::last(tag, group)) this->release_q(tiles % C::kQStages);
    this->hide();
    if constexpr (C::kOptions) this->admit(to, first_of_rows, score, product_done);
    else this->admit(to, first_of_rows, product_done);
  }
  __device__ void issue_held(const uint32_t (&weights)[C::kTileK / 4], uint32_t held) {
    wait_full(C::kVFull, held);
    this->issue_sums(weights, held % C::kStages, more);
  }
  __device__ void end_held(uint32_t held) {
    wait_products<0>();
    pin(o);
    this->release(C::kVEmpty + 8 * (held % C::kStages));
  }

  // One key tile. On entry its P is in `now` and no product is in flight; on return that of the next is in `then`.
  // Returns false after the last of the query tile.
  __device__ bool advance(uint32_t (&now)[C::kTileK / 4], uint32_t (&then)[C::kTileK / 4]) {
    const uint32_t held = step++;
    if (ListTag::last(tag, group)) {
      issue_held(now, held);
      end_held(held);
      return false;
    }
    seek();
    this->issue_scores(tiles % C::kQStages, slot());
    issue_held(now, held);
    Score<T, C::kTileK / 2> score{x.score};
    if constexpr (C::kOptions) this->prepare(score, number);
    wait_products<1>();
    weigh(then, score, false, [&] { end_held(held); });
    more = 1;
    return true;
  }

  __device__ void run() {
    tiles = step = 0, rows = {};
    if constexpr (C::kOptions) this->slope = 0.f;
    for (; seek(); ++tiles) {
      this->wait_q();
      this->enter_tile();
      Score<T, C::kTileK / 2> score{x.score};
      this->issue_scores(tiles % C::kQStages, slot());
      if constexpr (C::kOptions) this->prepare(score, number);
      wait_products<0>();
      weigh(p[0], score, true, [] {});
      more = 0;
      while (advance(p[0], p[1]) && advance(p[1], p[0])) {}
      this->done = rows;
      this->leave(this->tile(tiles));
    }
    wait_stores();
  }
};

}  // namespace attune::sm90
