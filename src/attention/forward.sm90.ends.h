// Forward attention for Hopper at d128: as Consumer, but the first and the last step of a query tile are code of their
// own. Where one piece of code serves all steps that are not plain, ptxas waits for P V before the first exponentials;
// a step that knows what it is leaves P V more time. Weights of these steps that outgrew the maximum are made again in
// one place.
#pragma once
#include "attention/forward.sm90.consumer.h"

namespace attune::sm90 {

// Last: the next scores are those of the next query tile. First: the query tile before leaves, and rows see all of the
// next key tile.
enum class Step { any, first, last };

template <class C>
struct EndsConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using T = typename C::T;
  using Base::alpha, Base::done, Base::first, Base::fresh, Base::j, Base::lane, Base::o, Base::p, Base::plain_first,
      Base::plain_last, Base::round, Base::rows, Base::s, Base::shared, Base::tile, Base::tiles, Base::x;
  static constexpr int kScores = C::kTileK / 2, kHalf = kScores / 2;  // of a thread
  static_assert(C::kTileK == 128 && C::kStages == 2 && C::kSteady && C::kMoves && C::kSpread && !C::kListed &&
                !C::kTurns && !C::kInPlace);

  // Half a key tile, from `key` on: compared with the edges that cross it and no others.
  template <int From>
  __device__ void hide_half(const QueryTile& t, int key) {
    const int row = this->warp_row() + lane / 4, column = key + lane % 4 * 2;
    if (min(t.keys, t.until + this->first_row()) < key + C::kTileK / 2) {
      const int last[2] = {min(t.keys, row + t.until) - 1 - column, min(t.keys, row + 8 + t.until) - 1 - column};
#pragma unroll
      for (int n = 0; n < kHalf; ++n)
        if (n / 4 * 8 + n % 2 > last[n / 2 % 2]) s[From + n] = -INFINITY;
    }
    if (t.from + this->last_row() > key) {
      const int begin[2] = {row + t.from - column, row + 8 + t.from - column};
#pragma unroll
      for (int n = 0; n < kHalf; ++n)
        if (n / 4 * 8 + n % 2 < begin[n / 2 % 2]) s[From + n] = -INFINITY;
    }
  }
  __device__ void hide() {
    if (j >= plain_first && j <= plain_last) return;
    const QueryTile& t = tile(tiles);
    hide_half<0>(t, j * C::kTileK);
    hide_half<kHalf>(t, j * C::kTileK + C::kTileK / 2);
  }

  __device__ void begin_rows() {
    rows = {{kNone, kNone}, {0.f, 0.f}};
    float top[2];
    largest(s, top);
    raise_max(top, rows, alpha, x.scale);
  }
  // Into p[1]. True: some are too large for the maximum.
  template <class Done>
  __device__ bool admit(Done product_done) {
    float sum[4] = {};
    weights<T, 0, kHalf>(s, p[1], rows, x.scale, sum);
    product_done();
    weights<T, kHalf, kScores>(s, p[1], rows, x.scale, sum);
    if (too_large(sum)) return true;
    rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
    return false;
  }
  // Into p[0].
  __device__ void admit_again() {
    float top[2], sum[4] = {};
    largest(s, top);
    raise_max(top, rows, alpha, x.scale);
    rescale(o, alpha);  // of new rows by 1: O is that of others
    weights<T, 0, kScores, true>(s, p[0], rows, x.scale, sum);
    rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
  }

  // As that of Consumer, from p[0] to p[1]. True: these weights are to be made again.
  template <Step kStep>
  __device__ bool advance(int slot) {
    const int next = slot ^ 1;
    const bool last = kStep == Step::last || (kStep == Step::any && j == first);
    const bool leaving = kStep == Step::first || (kStep == Step::any && fresh && tiles > 0);
    if (last) ++tiles;
    wait(shared + C::kKFull + 8 * next, round ^ (next == 0));
    this->issue_scores(tiles % C::kQStages, next);
    if (leaving) this->finish(tile(tiles - 1 - last));
    wait(shared + C::kVFull + 8 * slot, round);
    this->issue_sums(p[0], slot, kStep == Step::any ? !fresh : kStep == Step::last);
    if (leaving) this->send(tile(tiles - 1 - last));
    if (last) {
      done = rows;
      this->seal(tile(tiles - 1));
    }
    wait_products<1>();  // the scores
    pin(s);
    this->release(C::kKEmpty + 8 * next);
    --j, fresh = last;
    if (next == 0) round ^= 1;
    if (last) this->enter_tile();
    if (j == first) this->release_q(tiles % C::kQStages);
    if (kStep != Step::first) hide();
    if (last) begin_rows();
    return admit([&] {
      wait_products<0>();
      pin(o);
      this->release(C::kVEmpty + 8 * slot);
    });
  }
  // The last step of all.
  __device__ void end(int slot) {
    const bool leaving = fresh && tiles > 0;
    if (leaving) this->finish(tile(tiles - 1));
    wait(shared + C::kVFull + 8 * slot, round);
    this->issue_sums(p[0], slot, !fresh);
    if (leaving) this->send(tile(tiles - 1));
    done = rows;
    wait_products<0>();
    pin(o);
    this->leave(tile(tiles));
    wait_stores();
  }

  // So many more key tiles are seen whole.
  __device__ bool plain_next(int more) const {
    return j >= max(first, plain_first) + more && j <= plain_last + 1;
  }
  __device__ void run() {
    if (!this->begin()) return;
    hide();
    begin_rows();
    bool again = admit([] {});
#pragma unroll
    for (int n = 0; n < C::kDimV / 2; ++n) o[n] = 0.f;
#pragma unroll 1
    for (int slot = 0;; slot ^= 1) {
      move(p[0], p[1]);
      // No part of a step: the warps of a warpgroup differ in it, and all of them issue the same products.
      if (again) admit_again();
#pragma unroll 1
      while (slot == 0 && !fresh && plain_next(2)) {
        Base::template advance<true>(0, p[0], p[1]);
        Base::template advance<true>(1, p[1], p[0]);
      }
      const bool last = j == first;
      if (last) {
        wait(shared + C::kQFull + 8 * ((tiles + 1) % C::kQStages), (tiles + 1) / C::kQStages & 1);
        if (tile(tiles + 1).last < 0) return end(slot);
      }
      if (last && !fresh) again = advance<Step::last>(slot);
      else if (!last && fresh && tiles > 0 && plain_next(1)) again = advance<Step::first>(slot);
      else again = advance<Step::any>(slot);
    }
  }
};

}  // namespace attune::sm90
