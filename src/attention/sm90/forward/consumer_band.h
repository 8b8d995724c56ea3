// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper with key tiles of 64, where a warpgroup skips those that none of its 64 queries sees. At
// d256, where a step is all products, that saves half a step of every tile at the diagonal. At d128 it serves narrow
// bands, with three warpgroups: a window of 512 keys is 9 tiles of 64 for each, where tiles of 128 x 128 are 10. There,
// out leaves through the buffer of its q, which makes room for two q and four stages of k and v.
//
// A warpgroup holds v of its last key tile of a query tile until the scores of the next query tile are issued. In
// between it skips kGroups - 1 key tiles, fewer than there are slots.
#pragma once
#include "attention/sm90/forward/consumer.h"

namespace attune::sm90 {

template <class C>
struct BandConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using Base::any_done, Base::done, Base::first, Base::fresh, Base::group, Base::j, Base::lane, Base::o,
      Base::out_place, Base::p, Base::rows, Base::s, Base::shared, Base::tile, Base::tiles;
  using Weights = uint32_t[C::kTileK / 4];
  uint32_t step;  // this warpgroup's key tile in the stream
  int passed;     // key tiles directly before it that no query here sees
  bool sent;      // out of the previous query tile, through the buffer of its q

  __device__ void wait_full(int barrier, uint32_t n) const {
    wait(shared + barrier + 8 * (n % C::kStages), n / C::kStages & 1);
  }
  __device__ void give_back(int barrier, uint32_t n) const { this->release(barrier + 8 * (n % C::kStages)); }
  // Releases the skipped tiles before `n`, only after they have arrived. Before that their slots may hold other key
  // tiles, and a warpgroup that waits for the next one in a slot would take them for it.
  __device__ void give_back_passed(int full, int empty, uint32_t n, int count) const {
    if (lane >= count) return;
    const uint32_t passed_over = n - 1 - lane;
    wait_full(full, passed_over);
    arrive(shared + empty + 8 * (passed_over % C::kStages));
  }
  // The key tiles of the query tile that this warpgroup sees, at least one. With kOutThroughQ at least two, so that out
  // of the previous tile has left when the next q is needed.
  static constexpr int kMore = C::kOutThroughQ ? 1 : 0;
  __device__ int last_of(const QueryTile& t) const {
    return min(max((min(t.keys, t.until + this->last_row()) - 1) / C::kTileK, t.first + kMore), t.last);
  }
  __device__ int first_of(const QueryTile& t) const {
    return max(t.first, min(max(t.from + this->first_row(), 0) / C::kTileK, last_of(t) - kMore));
  }
  __device__ void enter_tile() {
    Base::enter_tile();
    j = last_of(tile(tiles)), first = first_of(tile(tiles));
  }

  __device__ static uint32_t place(uint32_t n) { return C::kQ + n % C::kQStages * C::kBytesQ; }
  // Out of query tile n has left: its buffer is q's again.
  __device__ void have_left(uint32_t n) {
    if (!sent) return;
    sent = false;
    wait_stores_read();
    __syncwarp();
    this->release_q(n % C::kQStages);
  }

  // Like Consumer::advance.
  template <bool Plain = false>
  __device__ bool advance(Weights& now, Weights& then) {
    const bool last = !Plain && j == first, leaving = !Plain && fresh && any_done;
    const uint32_t v_step = step;
    const int v_passed = Plain ? 0 : passed;
    if (!Plain) passed = 0;
    if (last) {
      have_left(tiles - 1);
      passed = first - tile(tiles).first;
      ++tiles;
      this->wait_q();
      if (tile(tiles).last < 0) {
        this->clear_o(leaving, tiles - 2);
        // Also releases those skipped before the last product: another warpgroup may still wait for v in their slots.
        give_back_passed(C::kVFull, C::kVEmpty, v_step, v_passed);
        wait_full(C::kVFull, v_step);
        this->issue_sums(now, v_step % C::kStages, !fresh);
        if (leaving) this->send(tile(tiles - 2));
        done = rows;
        wait_products<0>();
        pin(o);
        out_place = place(tiles - 1);
        this->leave(tile(tiles - 1));
        return false;
      }
      passed += tile(tiles).last - last_of(tile(tiles));
    }
    step += Plain ? 1 : passed + 1;
    wait_full(C::kKFull, step);
    if (!Plain) give_back_passed(C::kKFull, C::kKEmpty, step, passed);
    this->issue_scores(tiles % C::kQStages, step % C::kStages);
    if (leaving) out_place = place(tiles - 1 - last);
    this->clear_o(leaving, tiles - 1 - last);
    wait_full(C::kVFull, v_step);
    this->issue_sums(now, v_step % C::kStages, Plain || !fresh);
    if (!Plain) give_back_passed(C::kVFull, C::kVEmpty, v_step, v_passed);
    if (leaving) this->send(tile(tiles - 1 - last));
    if (last) {
      done = rows;
      this->seal(tile(tiles - 1));
    }
    have_left(tiles - 1);
    sent = C::kOutThroughQ && leaving;
    wait_products<1>();  // the scores
    pin(s);
    give_back(C::kKEmpty, step);
    --j;
    if (!Plain) fresh = last, any_done |= last;
    if (last) enter_tile();
    if (!C::kOutThroughQ && j == first) this->release_q(tiles % C::kQStages);
    if (!Plain) this->hide();
    this->admit(then, !Plain && fresh, [&] {
      wait_products<0>();
      pin(o);
      give_back(C::kVEmpty, v_step);
    });
    return true;
  }
  __device__ bool advance_both() {
    if constexpr (!C::kOutThroughQ) {
#pragma unroll 1
      while (!fresh && j > max(first, this->plain_first) + 1 && j <= this->plain_last + 1) {
        advance<true>(p[0], p[1]);
        advance<true>(p[1], p[0]);
      }
    }
    if (!advance(p[0], p[1])) return false;
    if constexpr (!C::kMoves) return advance(p[1], p[0]);
    move(p[0], p[1]);
    return true;
  }

  __device__ void run() {
    tiles = 0, fresh = true, any_done = sent = false;
    this->wait_q();
    if (tile(0).last < 0) return;
    enter_tile();
    step = passed = tile(0).last - j;
    wait_full(C::kKFull, step);
    give_back_passed(C::kKFull, C::kKEmpty, step, passed);
    this->issue_scores(0, step % C::kStages);
    wait_products<0>();
    pin(s);
    give_back(C::kKEmpty, step);
    if (!C::kOutThroughQ && j == first) this->release_q(0);
    this->hide();
    rows = {};
    this->admit(p[0], true, [] {});
#pragma unroll
    for (float& y : o) y = 0.f;
    while (advance_both()) {}
    wait_stores();
  }
};

}  // namespace attune::sm90
