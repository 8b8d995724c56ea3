// Forward attention for Hopper by key tiles of 64, of which a warpgroup passes over those that none of its 64 queries
// sees: at d256, where a step is all products, half a step of every tile at the diagonal; at d128, where the band is
// narrow, with three warpgroups: a window of 512 keys is 9 tiles of 64 for each, where tiles of 128 x 128 are 10.
//
// A warpgroup holds v of its last key tile of a query tile until the scores of the next query tile are issued, and
// passes over kGroups - 1 key tiles in between: fewer than there are slots. The one with the last queries goes first,
// the others a step behind each other. So three of them have four places for q, not six: when one comes to its next
// query tile, the place of the one before it is free, and its q there. Out leaves straight from registers. That makes
// room for five stages of k and v.
//
// Three warpgroups may share the keys of 64 queries, as the last tile of a block: each has all of their q and takes
// every third key tile, so it again passes over two between two of its own. At the end the first one adds up what all
// have, through the place of k and v, in the order of the warpgroups. That is what is left when every block has had as
// many tiles of 192 as the others: a third of the steps.
#pragma once
#include "attention/forward.sm90.consumer.h"

namespace attune::sm90 {

template <class C>
struct BandConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using Base::any_done, Base::done, Base::first, Base::fresh, Base::group, Base::j, Base::lane, Base::o,
      Base::p, Base::rows, Base::s, Base::shared, Base::tile, Base::tiles;
  using Weights = uint32_t[C::kTileK / 4];
  // Of a key tile of the stream: its slot, and the parity of how often slots went round.
  struct Place {
    uint32_t slot, round;
    // So many key tiles further, no more than there are slots.
    __device__ Place further(uint32_t count) const {
      const uint32_t there = slot + count, over = there >= C::kStages;
      return {there - over * C::kStages, round ^ over};
    }
  };
  Place step;  // the key tile that this warpgroup is at
  int passed;  // key tiles right before it that no query here sees, or that are another warpgroup's
  int stride;  // key tiles from one of its own to the next

  __device__ void wait_full(int barrier, Place n) const { wait(shared + barrier + 8 * n.slot, n.round); }
  __device__ void give_back(int barrier, Place n) const { this->release(barrier + 8 * n.slot); }
  // `count` of them, those before `n`, that were passed over. Only when they are there: before that their places may be
  // other key tiles', and who waits for the next one there would take them for it.
  __device__ void give_back_passed(int full, int empty, Place n, int count) const {
    if (count == 0) return;
    for (int before = 1; before <= count; ++before) {
      Place there = n.further(C::kStages - before);
      there.round ^= 1;
      wait_full(full, there);
      __syncwarp();  // every lane has seen it
      give_back(empty, there);
    }
  }
  // Of the query tile's key tiles those that are seen here, one at least.
  __device__ int last_of(const QueryTile& t) const {
    if (this->is_tail(t)) return t.last - (C::kGroups - 1 - group);
    return min(max((min(t.keys, t.until + this->last_row(t)) - 1) / C::kTileK, t.first), t.last);
  }
  __device__ int first_of(const QueryTile& t) const {
    if (this->is_tail(t)) return t.first + group;
    return max(t.first, min(max(t.from + this->first_row(t), 0) / C::kTileK, last_of(t)));
  }
  __device__ void enter_tile() {
    Base::enter_tile();
    j = last_of(tile(tiles)), first = first_of(tile(tiles)), stride = this->is_tail(tile(tiles)) ? C::kGroups : 1;
  }

  // Of the q of query tile n.
  __device__ uint32_t q_turn(uint32_t n) const { return C::kRing ? n * C::kGroups + (C::kGroups - 1 - group) : n; }
  __device__ void wait_q() const {
    if constexpr (C::kRing)
      wait(shared + C::kQFull + 8 * (tiles % 2 * C::kGroups + C::kGroups - 1 - group), tiles / 2 & 1);
    else Base::wait_q();
  }

  // Of 64 queries whose keys warpgroups share: the first one has what all have; false for the others.
  __device__ bool join() {
    constexpr int kThreads = 128 * C::kGroups, kFour = 16 * 128, kRest = C::kDimV / 8 * kFour, kPart = kRest + kFour;
    static_assert(!C::kRing || (C::kGroups - 1) * kPart <= C::kStages * (C::kBytesK + C::kBytesV));
    const uint32_t place = shared + C::kK + 16 * (this->warp * 32 + lane);
    named_sync(1, kThreads);  // nobody needs k and v any more, and none is on its way
    if (group > 0) {
      const uint32_t to = place + (group - 1) * kPart;
#pragma unroll
      for (int n = 0; n < C::kDimV / 8; ++n)
        store_shared4(to + n * kFour, o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]);
      store_shared4(to + kRest, done.max[0], done.max[1], done.sum[0], done.sum[1]);
      named_arrive(2, kThreads);
      return false;
    }
    named_sync(2, kThreads);
#pragma unroll 1
    for (uint32_t from = place; from < place + (C::kGroups - 1) * kPart; from += kPart) {
      const float4 other = load_shared4(from + kRest);  // maxima and sums of its two rows
      const float top[2] = {fmaxf(done.max[0], other.x), fmaxf(done.max[1], other.y)};
      const float here[2] = {sm80::exp2_fast(done.max[0] - top[0]), sm80::exp2_fast(done.max[1] - top[1])};
      const float there[2] = {sm80::exp2_fast(other.x - top[0]), sm80::exp2_fast(other.y - top[1])};
      done = {{top[0], top[1]},
              {done.sum[0] * here[0] + other.z * there[0], done.sum[1] * here[1] + other.w * there[1]}};
#pragma unroll
      for (int n = 0; n < C::kDimV / 8; ++n) {
        const float4 more = load_shared4(from + n * kFour);
        o[4 * n] = o[4 * n] * here[0] + more.x * there[0], o[4 * n + 1] = o[4 * n + 1] * here[0] + more.y * there[0];
        o[4 * n + 2] = o[4 * n + 2] * here[1] + more.z * there[1];
        o[4 * n + 3] = o[4 * n + 3] * here[1] + more.w * there[1];
      }
    }
    return true;
  }

  // As that of Consumer.
  template <bool Plain = false>
  __device__ bool advance(Weights& now, Weights& then) {
    const bool last = !Plain && j == first, leaving = !Plain && fresh && any_done;
    const Place v_step = step;
    const int v_passed = Plain ? 0 : passed;
    if (!Plain) passed = stride - 1;
    if (last) {
      passed = first - tile(tiles).first;
      ++tiles;
      wait_q();
      if (tile(tiles).last < 0) {
        this->clear_o(leaving, tiles - 2);
        wait_full(C::kVFull, v_step);
        this->issue_sums(now, v_step.slot, !fresh);
        if (leaving) this->send(tile(tiles - 2));
        done = rows;
        wait_products<0>();
        pin(o);
        return false;
      }
      passed += tile(tiles).last - last_of(tile(tiles));
    }
    step = step.further(Plain ? 1 : passed + 1);
    wait_full(C::kKFull, step);
    if (!Plain) give_back_passed(C::kKFull, C::kKEmpty, step, passed);
    this->issue_scores(q_turn(tiles) % C::kQStages, step.slot);
    this->clear_o(leaving, tiles - 1 - last);
    wait_full(C::kVFull, v_step);
    this->issue_sums(now, v_step.slot, Plain || !fresh);
    if (!Plain) give_back_passed(C::kVFull, C::kVEmpty, v_step, v_passed);
    if (leaving) this->send(tile(tiles - 1 - last));
    if (last) {
      done = rows;
      this->seal(tile(tiles - 1));
    }
    wait_products<1>();  // the scores
    pin(s);
    give_back(C::kKEmpty, step);
    j -= Plain ? 1 : stride;
    if (!Plain) fresh = last, any_done |= last;
    if (last) enter_tile();
    if (j == first) this->release_q(q_turn(tiles) % C::kQStages);
    if (!Plain) this->hide();
    this->admit(then, !Plain && fresh, [&] {
      wait_products<0>();
      pin(o);
      give_back(C::kVEmpty, v_step);
    });
    return true;
  }
  __device__ bool advance_both() {
#pragma unroll 1
    while (!fresh && stride == 1 && j > max(first, this->plain_first) + 1 && j <= this->plain_last + 1) {
      advance<true>(p[0], p[1]);
      advance<true>(p[1], p[0]);
    }
    if (!advance(p[0], p[1])) return false;
    if constexpr (!C::kMoves) return advance(p[1], p[0]);
    move(p[0], p[1]);
    return true;
  }

  __device__ void run() {
    tiles = 0, fresh = true, any_done = false;
    wait_q();
    if (tile(0).last < 0) return;
    enter_tile();
    passed = tile(0).last - j, step = Place{0, 0}.further(passed);
    wait_full(C::kKFull, step);
    give_back_passed(C::kKFull, C::kKEmpty, step, passed);
    this->issue_scores(q_turn(0) % C::kQStages, step.slot);
    wait_products<0>();
    pin(s);
    give_back(C::kKEmpty, step);
    if (j == first) this->release_q(q_turn(0) % C::kQStages);
    this->hide();
    rows = {};
    this->admit(p[0], true, [] {});
#pragma unroll
    for (float& y : o) y = 0.f;
    while (advance_both()) {}
    if (!this->is_tail(tile(tiles - 1)) || join()) this->leave(tile(tiles - 1));
    wait_stores();
  }
};

}  // namespace attune::sm90
