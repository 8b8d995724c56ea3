// Forward attention for Hopper at d128: as Consumer, but a query tile's first and last step are code of their own.
//
// Where one piece of code serves all steps that are not plain, ptxas waits for P V before the first exponential. Here a
// step knows what it is: plain; `last`, which begins the next query tile's scores; `first`, in which the tile before
// leaves; or any. A warpgroup that sees but half of the diagonal's key tile, or of a window's first one, multiplies
// that half alone: a branch around a product serialises all of them, a step of its own does not. Weights that outgrew
// the maximum are made again in one place for all steps.
#pragma once
#include "attention/forward.sm90.consumer.h"

namespace attune::sm90 {

enum class Step { any, plain, last, first, inner };
// Keys of a key tile.
enum class Part { whole, lower, upper };

template <class C>
struct EndsConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using T = typename C::T;
  using Base::alpha, Base::done, Base::first, Base::fresh, Base::group, Base::j, Base::lane, Base::o,
      Base::p, Base::plain_first, Base::plain_last, Base::rows, Base::s, Base::shared, Base::tile,
      Base::tiles, Base::x;
  static constexpr int kAll = C::kTileK / 2, kHalf = kAll / 2;  // scores of a thread
  static_assert(C::kTileK == 128 && C::kStages == 2 && !C::kInPlace && !C::kTurns && !C::kOptions);
  static_assert(C::kLists != Lists::each && !(C::kListed && (C::kHalfEnds || C::kHalfBegins)));
  using Weights = uint32_t[kAll / 2];
  uint32_t step;  // key tiles begun, less one: its slot and parity
  int part;       // of Part: keys whose weights p[0] has; the others' are zero

  // Weights; scores of a half are the first ones always.
  static constexpr int from(Part k) { return k == Part::upper ? kHalf : 0; }
  static constexpr int to(Part k) { return k == Part::lower ? kHalf : kAll; }
  static constexpr int count(Part k) { return to(k) - from(k); }

  template <Part k>
  __device__ void issue_scores(uint32_t q_stage, uint32_t slot) {
    if constexpr (k == Part::whole) {
      Base::issue_scores(q_stage, slot);
    } else {
      const uint32_t keys = operand(shared + C::kK + slot * C::kBytesK + (k == Part::upper ? 64 * 128 : 0), 0);
      begin_products();
      const uint32_t q = operand(shared + C::kQ + q_stage * C::kBytesQ + group * 64 * 128, 0);
      float(&half)[kHalf] = reinterpret_cast<float(&)[kHalf]>(s);
#pragma unroll
      for (int n = 0; n < C::kDim / 16; ++n)
        Product<T, 64>::shared(half, q + (n / 4 * C::kPanelQ + n % 4 * 32) / 16,
                               keys + (n / 4 * C::kPanelK + n % 4 * 32) / 16, n > 0);
      close_products();
    }
  }
  template <Part k>
  __device__ void issue_sums(uint32_t slot, int add, const Weights& now) {
    begin_products();
    const uint32_t v = operand(shared + C::kV + slot * C::kBytesV, C::kPanelK);
#pragma unroll
    for (int n = from(k) / 8; n < to(k) / 8; ++n)
      Product<T, C::kDimV>::registers(o, now + 4 * n, v + n * 16 * 128 / 16, n > from(k) / 8 ? 1 : add);
    close_products();
  }

  // Keys behind what rows see, and before it: of 64 keys from `key` on, whose scores are those from From on.
  template <int From>
  __device__ void hide_half(const QueryTile& t, int key) {
    const int row = this->warp_row() + lane / 4, column = key + lane % 4 * 2;
    if (min(t.keys, t.until + this->first_row()) < key + 64) {
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
  template <Part k>
  __device__ void hide() {
    const int here = this->key_tile();
    if (here >= plain_first && here <= plain_last) return;
    if constexpr (C::kListed) return Base::hide();
    const QueryTile& t = tile(tiles);
    hide_half<0>(t, here * C::kTileK + (k == Part::upper ? 64 : 0));
    if constexpr (k == Part::whole) hide_half<kHalf>(t, here * C::kTileK + 64);
  }

  template <Part k>
  __device__ void begin_rows() {
    rows = {{kNone, kNone}, {0.f, 0.f}};
    float top[2];
    largest(reinterpret_cast<const float(&)[count(k)]>(s), top);
    raise_max(top, rows, alpha, x.scale);
    // Never so. ptxas moves no wait for products over it: the maximum is found while they run.
    if (C::kPinned) asm volatile("{\n.reg .pred p;\nsetp.gt.f32 p, %0, 0f7F800000;\n@p trap;\n}" ::"f"(rows.max[0]));
  }
  // True: weights are too large for the maximum, and are to be made again.
  template <Part k, class Done>
  __device__ __forceinline__ bool admit(Weights& then, Done product_done) {
    constexpr int kCount = count(k), kOther = (from(k) + kHalf) % kAll / 2;
    auto& scores = reinterpret_cast<const float(&)[kCount]>(s);
    auto& to = reinterpret_cast<uint32_t(&)[kCount / 2]>(then[from(k) / 2]);
    float sum[4] = {};
    weights<T, 0, kCount / 2>(scores, to, rows, x.scale, sum);
    product_done();
    weights<T, kCount / 2, kCount>(scores, to, rows, x.scale, sum);
    if constexpr (k != Part::whole) {
#pragma unroll
      for (int n = kOther; n < kOther + kHalf / 2; ++n) then[n] = 0;
    }
    if (too_large(sum)) return true;
    rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
    return false;
  }
  __device__ void admit_again() {
#pragma unroll
    for (int n = kHalf; n < kAll; ++n)
      if ((C::kHalfEnds || C::kHalfBegins) && part != int(Part::whole)) s[n] = -INFINITY;
    float top[2], sum[4] = {};
    largest(s, top);
    raise_max(top, rows, alpha, x.scale);
    rescale(o, alpha);  // of new rows by 1: O is that of others
    weights<T, 0, kAll, true>(s, p[0], rows, x.scale, sum);
    rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
    if (C::kHalfBegins && part == int(Part::upper)) {
#pragma unroll
      for (int n = 0; n < kHalf / 2; ++n) p[0][kHalf / 2 + n] = p[0][n], p[0][n] = 0;
    }
  }

  // As that of Consumer, but for the end of all. The next step's scores are those of Next, this one's weights of Now.
  template <Step kStep, Part Next = Part::whole, Part Now = Part::whole>
  __device__ __forceinline__ bool advance(int slot, const Weights& now, Weights& then) {
    const int next = slot ^ 1;
    const bool last = kStep == Step::last || (kStep == Step::any && j == first);
    const bool leaving = kStep == Step::first || (kStep == Step::any && fresh && tiles > 0);
    if (last) ++tiles;
    wait(shared + C::kKFull + 8 * next, (step + 1) / 2 & 1);
    issue_scores<Next>(tiles % C::kQStages, next);
    if (leaving) this->finish(tile(tiles - 1 - last));
    wait(shared + C::kVFull + 8 * slot, step / 2 & 1);
    issue_sums<Now>(slot, kStep == Step::any ? !fresh : kStep != Step::first, now);
    if (leaving) this->send(tile(tiles - 1 - last));
    if (last) {
      done = rows;
      this->seal(tile(tiles - 1));
    }
    this->number = this->number_in(next);
    wait_products<1>();  // the scores
    pin(s);
    this->release(C::kKEmpty + 8 * next);
    --j;
    if (kStep != Step::plain && kStep != Step::inner) fresh = last;
    if (kStep != Step::plain) part = int(Next);
    ++step;
    if (last) this->enter_tile();
    if (j == first) this->release_q(tiles % C::kQStages);
    if (C::kListed || (kStep != Step::plain && kStep != Step::first)) hide<Next>();
    if (kStep == Step::last || (kStep == Step::any && last)) begin_rows<Next>();
    return admit<Next>(then, [&] {
      wait_products<0>();
      pin(o);
      this->release(C::kVEmpty + 8 * slot);
    });
  }

  // Of a query tile's last key tile the upper half is seen by no row here; of its first one the lower half.
  __device__ bool ends_low(const QueryTile& t) const {
    return min(t.keys, t.until + this->last_row()) <= t.last * C::kTileK + 64;
  }
  __device__ bool begins_high(const QueryTile& t) const {
    return t.from + this->first_row() >= t.first * C::kTileK + 64;
  }

  // So many more key tiles are seen whole; of a list, whatever is seen.
  __device__ bool plain_next(int more) const {
    return C::kListed ? j >= first + more : j >= max(first, plain_first) + more && j <= plain_last + 1;
  }

  __device__ void end_all(int slot) {
    const bool leaving = fresh && tiles > 0;
    if (leaving) this->finish(tile(tiles - 1));
    wait(shared + C::kVFull + 8 * slot, step / 2 & 1);
    issue_sums<Part::whole>(slot, !fresh, p[0]);
    if (leaving) this->send(tile(tiles - 1));
    done = rows;
    wait_products<0>();
    pin(o);
    this->leave(tile(tiles));
    wait_stores();
  }

  __device__ __forceinline__ void run() {
    tiles = step = 0, fresh = true, part = 0;
    this->wait_q();
    if (tile(0).last < 0) return;
    this->enter_tile();
    wait(shared + C::kKFull, 0);
    this->number = this->number_in(0);
    Base::issue_scores(0, 0);
    wait_products<0>();
    pin(s);
    this->release(C::kKEmpty);
    if (j == first) this->release_q(0);
    hide<Part::whole>();
    begin_rows<Part::whole>();
    bool again = admit<Part::whole>(p[0], [] {});
#pragma unroll
    for (int n = 0; n < C::kDimV / 2; ++n) o[n] = 0.f;
#pragma unroll 1
    for (;;) {
      if (again) admit_again();
      again = false;
      if (step % 2 == 0 && !fresh) {
#pragma unroll 1
        while (plain_next(2)) {
          part = 0;
          if (advance<Step::plain>(0, p[0], p[1])) {
            move(p[0], p[1]);
            again = true;
            break;
          }
          if (advance<Step::plain>(1, p[1], p[0])) {
            again = true;
            break;
          }
        }
        if (again) continue;
      }
      const int slot = int(step % 2);
      const bool ending = j == first;
      if (ending) {
        wait(shared + C::kQFull + 8 * ((tiles + 1) % C::kQStages), (tiles + 1) / C::kQStages & 1);
        if (tile(tiles + 1).last < 0) return end_all(slot);
      }
      if (ending && !fresh) {
        if (C::kHalfEnds && ends_low(tile(tiles + 1))) {
          again = advance<Step::last, Part::lower>(slot, p[0], p[1]);
        } else if (C::kHalfBegins && part == int(Part::upper)) {
          again = advance<Step::last, Part::whole, Part::upper>(slot, p[0], p[1]);
        } else {
          again = advance<Step::last>(slot, p[0], p[1]);
        }
      } else if (!ending && fresh && tiles > 0 && plain_next(1)) {
        if (C::kHalfEnds && C::kHalfSums && part == int(Part::lower)) {
          again = advance<Step::first, Part::whole, Part::lower>(slot, p[0], p[1]);
        } else {
          again = advance<Step::first>(slot, p[0], p[1]);
        }
      } else if (C::kHalfBegins && !ending && !fresh && j == first + 1 && begins_high(tile(tiles))) {
        again = advance<Step::inner, Part::upper>(slot, p[0], p[1]);
      } else {
        again = advance<Step::any>(slot, p[0], p[1]);
      }
      move(p[0], p[1]);
    }
  }
};

}  // namespace attune::sm90
