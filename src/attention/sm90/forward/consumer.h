// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: a consumer warpgroup, which owns 64 queries. It issues both products, computes the
// softmax and runs the epilogue. consumer_band.h and consumer_lists.h derive from it.
#pragma once
#include "attention/sm90/forward/score.h"
#include "attention/sm90/forward/softmax.h"
#include "core/softmax.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/memory.h"
#include "machine/sm90/tma.h"

namespace attune::sm90 {

// Named barriers. kPingPongBarrier: the first of one per consumer warpgroup, each for two warpgroups. Barrier 0 is
// __syncthreads.
enum ForwardBarrier : int { kPingPongBarrier = 1 };
inline constexpr int kPingPongThreads = 256;

template <class C>
struct Consumer {
  using T = typename C::T;
  const ForwardParams& x;
  const uint32_t shared;
  const int group, warp, lane;

  float s[C::kTileK / 2];
  float o[C::kDimV / 2];
  static constexpr int kSpare = C::kInPlace ? 0 : 1;
  uint32_t p[1 + kSpare][C::kTileK / 4];  // pairs, as WGMMA operands: one being multiplied, one being computed
  Rows rows, done;                        // of this query tile; of the previous one, as seal() left them
  float alpha[2];
  uint32_t tiles;                         // query tiles started, minus one
  uint32_t round;                         // parity of key tiles started / kStages; their slot is a template argument
  bool any_done;                          // there is a previous query tile
  int j, first;                           // this key tile; the last one of the query tile; of a list: positions in it
  int number;                             // of a list: this key tile
  int plain_first, plain_last;            // key tiles of this query tile that every row sees completely
  bool fresh;
  bool raised;                            // with weights in place: O must be rescaled by alpha
  float slope;                            // with options only: of this query tile's head, in base 2
  uint32_t out_place;                     // kOutThroughQ: q buffer of the query tile that leaves

  static constexpr uint32_t kNoTile = ~0u;

  __device__ void release(int barrier) const {
    if (lane == 0) arrive(shared + barrier);
  }
  // Every lane arrives, because each has read the tile whose slot becomes free: racecheck tracks no other way.
  __device__ void release_q(uint32_t stage) const { arrive(shared + C::kQEmpty + 8 * stage); }
  __device__ void issue_scores(uint32_t q_stage, uint32_t k_slot) {
    const uint32_t k = operand(shared + C::kK + k_slot * C::kBytesK, 0);
    begin_products();
    const uint32_t q = operand(shared + C::kQ + q_stage * C::kBytesQ + group * 64 * 128, 0);
#pragma unroll
    for (int n = 0; n < C::kDim / 16; ++n)
      Product<T, C::kTileK>::shared(s, q + (n / 4 * C::kPanelQ + n % 4 * 32) / 16,
                                    k + (n / 4 * C::kPanelK + n % 4 * 32) / 16, n > 0);
    close_products();
  }
  __device__ void issue_sums(const uint32_t (&weights)[C::kTileK / 4], uint32_t v_slot, int add) {
    begin_products();
    const uint32_t v = operand(shared + C::kV + v_slot * C::kBytesV, C::kPanelK);
#pragma unroll
    for (int n = 0; n < C::kTileK / 16; ++n)
      Product<T, C::kDimV>::registers(o, weights + 4 * n, v + n * 16 * 128 / 16, n > 0 ? 1 : add);
    close_products();
  }

  // First row and head of this warp's 16 rows, relative to the query tile.
  __device__ int warp_row() const { return (group * 64 + warp * 16) & x.row_mask; }
  __device__ int warp_head() const { return (group * 64 + warp * 16) >> x.row_shift; }
  // First and last row of this warpgroup.
  __device__ int first_row() const { return group * 64 & x.row_mask; }
  __device__ int last_row() const { return first_row() + min(63, x.row_mask); }
  __device__ int key_tile() const { return C::kListed ? number : j; }
  // Masks scores. Only key tiles that cross an edge of the band or the end of the keys need it.
  __device__ void hide() {
    const int here = key_tile();
    if (here >= plain_first && here <= plain_last) return;
    const QueryTile& t = tile(tiles);
    const int row = warp_row() + lane / 4, column = here * C::kTileK + lane % 4 * 2;
    const int last[2] = {min(t.keys, row + t.until) - 1 - column, min(t.keys, row + 8 + t.until) - 1 - column};
    const int from[2] = {row + t.from - column, row + 8 + t.from - column};
#pragma unroll
    for (int n = 0; n < C::kTileK / 2; ++n) {
      const int c = n / 4 * 8 + n % 2, r = n / 2 % 2;
      if (c > last[r] || c < from[r]) s[n] = -INFINITY;
    }
  }

  // True if the last row of this warpgroup sees a key in the upper half of key tile j.
  __device__ bool sees_upper() const {
    return min(tile(tiles).keys, tile(tiles).until + last_row()) > j * C::kTileK + C::kTileK / 2;
  }

  // True for part of a stream-K tile, which goes to memory unnormalized.
  __device__ static bool is_partial(const QueryTile& t) { return C::kStreamK && t.column; }
  __device__ void store_partial(int place) const {
    float4* const to =
        x.partials + (int64_t(place) * (C::kGroups * 4) + group * 4 + warp) * partial_size(C::kDimV) + lane;
#pragma unroll
    for (int n = 0; n < C::kDimV / 8; ++n) to[32 * n] = {o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]};
    to[C::kDimV * 4] = {done.max[0], done.max[1], sm80::row_sum(done.sum[0]), sm80::row_sum(done.sum[1])};
  }

  __device__ bool f32_out() const { return C::kF32Out || (C::kRuntimeOutType && x.f32_out); }
  // The epilogue of a query tile has three steps: seal, finish, send. `done` has seen all keys. seal() replaces its sum
  // by the factor of O, except for f32 output.
  __device__ void seal(const QueryTile& t) {
    if (f32_out() || is_partial(t)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sm80::row_sum(done.sum[r]);
      const bool any = sum != 0.f;  // some key was seen, or a NaN, which no maximum shows
      const int i = t.row + warp_row() + lane / 4 + 8 * r;
      done.sum[r] = any ? reciprocal_fast(sum) : 0.f;
      if (x.lse || x.sinks) {
        float lse = any ? done.max[r] + __log2f(sum) : -INFINITY;
        if (x.sinks) done.sum[r] *= merge_sink(t, lse);
        if (x.lse && lane % 4 == 0 && i < t.end) *lse_at(t, i) = lse * kLn2;
      }
      if (C::kOptions) done.sum[r] *= x.score.kept;
    }
  }
  // Each warp stores its own 16 rows. O is free on return. Except for f32 output, send() still has to send the last
  // panels.
  __device__ void finish(const QueryTile& t) {
    if (f32_out()) return finish_f32(t, done);
    if (is_partial(t)) return store_partial(t.column - 1);
    const int r = lane % 16, half = lane / 16;
#pragma unroll
    for (int panel = 0; panel < C::kPanelsV; panel += C::kPanelsOut) {
      if (panel > 0) send(t, panel - C::kPanelsOut);
      wait_stores_read();  // of the previous rows
      __syncwarp();
#pragma unroll
      for (int n = 0; n < C::kPanelsOut * 4; ++n) {
        if (32 * panel + 8 * n >= C::kDimV / 2) break;
        const float* y = o + 32 * panel + 8 * n;
        store_matrix4(out_rows() + n / 4 * C::kPanelQ + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4),
                      sm80::pack<T>(y[0] * done.sum[0], y[1] * done.sum[0]),
                      sm80::pack<T>(y[2] * done.sum[1], y[3] * done.sum[1]),
                      sm80::pack<T>(y[4] * done.sum[0], y[5] * done.sum[0]),
                      sm80::pack<T>(y[6] * done.sum[1], y[7] * done.sum[1]));
      }
    }
  }
  __device__ uint32_t out_rows() const {
    return shared + (C::kOutThroughQ ? out_place : C::kOut) + (group * 64 + warp * 16) * 128;
  }
  __device__ void send(const QueryTile& t, int panel = C::kPanelsV - C::kPanelsOut) const {
    if (f32_out() || is_partial(t)) return;
    publish_shared();
    __syncwarp();
    // Past the end of a sequence come rows of another one; past the end of the tensor nothing is written.
    const int row = t.row + warp_row();
    const bool end = x.table && row + 16 > t.end;
    if (end ? row + lane < t.end && lane < 16 : lane == 0) {
      const CUtensorMap& map = end ? x.out_row : x.out;
#pragma unroll
      for (int n = 0; n < C::kPanelsOut; ++n)
        store_tile(map, out_rows() + n * C::kPanelQ + lane * 128, (panel + n) * 64, row + lane,
                   t.head + warp_head(), t.batch);
      close_stores();
    }
  }

  __device__ void leave(const QueryTile& t) {
    seal(t);
    finish(t);
    send(t);
  }
  __device__ float* lse_at(const QueryTile& t, int i) const {
    return x.lse + t.batch * x.lse_stride.batch + i * x.lse_stride.seq +
           (t.head + warp_head()) * x.lse_stride.head;
  }
  // Adds the sink to the row's sum, in base 2. Returns the factor of the other terms. merge() needs more registers.
  __device__ float merge_sink(const QueryTile& t, float& lse) const {
    const float sink = x.sinks[(t.head + warp_head()) * x.sink_stride] * kLog2e;
    if (sink == -INFINITY) return 1.f;
    const float more = sm80::exp2_fast(sink - lse);  // relative to the sum so far
    lse = sink - lse > 64.f ? sink : lse + __log2f(1.f + more);
    return __fdividef(1.f, 1.f + more);
  }
  __device__ void finish_f32(const QueryTile t, const Rows& rows) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sm80::row_sum(rows.sum[r]);
      const bool any = sum != 0.f;
      const int i = t.row + warp_row() + lane / 4 + 8 * r;
      const float mine = any ? (rows.max[r] + __log2f(sum)) * kLn2 : -INFINITY;
      const bool there = i < t.end;
      Share share = merge(x.accumulate && there ? *lse_at(t, i) : -INFINITY, mine);
      if (x.sinks) {
        float lse = share.lse * kLog2e;
        const float rest = merge_sink(t, lse);
        share = {share.a * rest, share.b * rest, lse * kLn2};
      }
      __syncwarp();  // all four lanes of a row have read it
      if (!there) continue;
      if (x.lse && lane % 4 == 0) *lse_at(t, i) = share.lse;
      const float now = any ? share.b / sum * (C::kOptions ? x.score.kept : 1.f) : 0.f;
      float* to = x.f32_out + t.batch * x.f32_stride.batch + i * x.f32_stride.seq +
                  (t.head + warp_head()) * x.f32_stride.head;
#pragma unroll
      for (int n = 0; n < C::kDimV / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= x.dim_v) break;
        float2* place = reinterpret_cast<float2*>(to + column);
        float2 two = {o[4 * n + 2 * r] * now, o[4 * n + 2 * r + 1] * now};
        if (share.a != 0.f) two.x += place->x * share.a, two.y += place->y * share.a;
        *place = two;
      }
    }
  }

  __device__ void ping_pong_begin() const {
    if (C::kPingPong) named_sync(kPingPongBarrier + group, kPingPongThreads);
  }
  __device__ void ping_pong_end() const {
    if (C::kPingPong) named_arrive(kPingPongBarrier + (group + 1) % C::kGroups, kPingPongThreads);
  }
  __device__ const QueryTile& tile(uint32_t n) const {
    return *reinterpret_cast<const QueryTile*>(__cvta_shared_to_generic(shared + C::kTiles + C::kTileBytes * (n % 4)));
  }
  __device__ void wait_q() const { wait(shared + C::kQFull + 8 * (tiles % C::kQStages), tiles / C::kQStages & 1); }
  __device__ void enter_tile() {
    const QueryTile& t = tile(tiles);
    j = t.last, first = C::kLists == Lists::one ? 0 : t.first;  // with one list always 0: saves a register
    plain_first = max(0, t.from + last_row() + C::kTileK - 1) / C::kTileK;
    plain_last = min(t.keys, t.until + first_row()) / C::kTileK - 1;
    if (C::kOptions && x.score.slopes) slope = x.score.slopes[t.head * x.score.slope_stride] * kLog2e;
  }

  // Read by the lane that releases the slot: racecheck tracks no other way.
  __device__ int number_in(int slot) const {
    if (!C::kListed) return 0;
    const int* const number = static_cast<const int*>(__cvta_shared_to_generic(shared + C::kNumbers + 4 * slot));
    return __shfl_sync(~0u, lane == 0 ? *number : 0, 0);
  }

  // One key tile, in slot `slot` of v, mostly a constant. On entry its P is in `now` and no product is in flight; on
  // return P of the next step is in `then`. Returns false after the last tile. Plain: the next key tile belongs to the
  // same rows, and all of them see all of it; with a list, whatever they see.
  template <bool Plain = false>
  __device__ bool advance(int slot, uint32_t (&now)[C::kTileK / 4], uint32_t (&then)[C::kTileK / 4]) {
    const int next = (slot + 1) % C::kStages;
    const bool last = !Plain && j == first;
    const bool begins = C::kBegins && !Plain && tiles == kNoTile;  // this product belongs to no tile and is discarded
    const bool leaving = !Plain && fresh && any_done;              // O still belongs to the previous query tile
    if (last) {
      ++tiles;
      wait_q();
      if (tile(tiles).last < 0) {
        if (begins) return false;
        if constexpr (C::kBegins) {
          end(slot, now, leaving);
          return false;
        }
        clear_o(leaving, tiles - 2);
        wait(shared + C::kVFull + 8 * slot, round);
        issue_sums(now, slot, !fresh);
        if (C::kSpread && leaving) send(tile(tiles - 2));
        done = rows;
        wait_products<0>();
        pin(o);
        leave(tile(tiles - 1));
        return false;
      }
    }
    wait(shared + C::kKFull + 8 * next, round ^ (next == 0));
    ping_pong_begin();
    issue_scores(tiles % C::kQStages, next);
    clear_o(leaving, tiles - 1 - last);
    if (!begins) wait(shared + C::kVFull + 8 * slot, round);
    issue_sums(now, slot, Plain || !fresh);
    ping_pong_end();
    if (C::kSpread && leaving) send(tile(tiles - 1 - last));
    if (last && !begins) {
      done = rows;
      if (C::kSpread) seal(tile(tiles - 1));
    }
    Score<T, C::kTileK / 2> score{x.score};
    if constexpr (C::kOptions) prepare(score, last ? tile(tiles).last : j - 1);
    number = number_in(next);  // after the products, which would otherwise wait for it
    wait_products<1>();        // the scores
    pin(s);
    release(C::kKEmpty + 8 * next);
    --j;
    if (!Plain) fresh = last, any_done |= last && !begins;
    if (next == 0) round ^= 1;
    if (last) enter_tile();
    if (j == first) release_q(tiles % C::kQStages);
    const bool upper = Plain || !C::kHalves || sees_upper();
    if (!Plain || C::kListed) hide();
    const auto product_done = [&] {
      wait_products<0>();
      pin(o);
      if (!begins) release(C::kVEmpty + 8 * slot);
    };
    if constexpr (C::kOptions) admit(then, fresh, score, product_done);
    else admit(then, !Plain && fresh, product_done, upper);
    return true;
  }
  __device__ Spot spot(int here) const {
    const QueryTile& t = tile(tiles);
    const int row = group * 64 + warp * 16 + lane / 4;
    return {.batch = t.sequence, .head = t.head, .row = t.query + row, .column = here * C::kTileK + lane % 4 * 2,
            .position = t.stand + row, .rows = t.query + t.end - t.row, .keys = t.keys};
  }
  __device__ void prepare(Score<T, C::kTileK / 2>& score, int here) const {
    score.prepare(spot(here), x.heads, !C::kListed && here > tile(tiles).first);
  }
  // With options. Masked scores stay out of their arithmetic and are masked again after it.
  template <class Done>
  __device__ void admit(uint32_t (&to)[C::kTileK / 4], bool first_of_rows, Score<T, C::kTileK / 2>& score,
                        Done product_done) {
    const float scale = score.apply(s, spot(key_tile()), x.scale, slope);
    hide();
    if constexpr (C::kInPlace)
      raised = softmax_in_place<T>(s, to, rows, alpha, scale, first_of_rows, product_done);
    else
      softmax<T>(s, to, rows, o, scale, first_of_rows, product_done);
    score.drop(to);
  }
  template <class Done>
  __device__ void admit(uint32_t (&to)[C::kTileK / 4], bool first_of_rows, Done product_done, bool upper = true) {
    if constexpr (C::kInPlace)
      raised = softmax_in_place<T>(s, to, rows, alpha, x.scale, first_of_rows, product_done);
    else
      softmax<T>(s, to, rows, o, x.scale, first_of_rows, product_done, upper);
  }
  // Frees O for the next P V: stores the previous query tile, or rescales.
  __device__ void clear_o(bool leaving, uint32_t before) {
    if (leaving) {
      if (C::kSpread) finish(tile(before));
      else leave(tile(before));
    } else if (C::kInPlace && raised) {
      rescale(o, alpha);
    }
  }
  // The last product of the CTA and the rest of O, after the previous query tile if that has not left yet.
  __device__ void end(int slot, uint32_t (&now)[C::kTileK / 4], bool leaving) {
#pragma unroll 1
    for (uint32_t n = tiles - 1 - leaving; n != tiles; ++n) {
      if (n + 1 == tiles) {
        wait(shared + C::kVFull + 8 * slot, round);
        issue_sums(now, slot, !fresh);
        done = rows;
        wait_products<0>();
        pin(o);
        seal(tile(n));
      }
      finish(tile(n));
      send(tile(n));
    }
  }
  template <int slot = 0>
  __device__ bool advance_all() {
    if (!advance(slot, p[slot & kSpare], p[(slot + 1) & kSpare])) return false;
    if constexpr (slot + 1 < C::kStages) return advance_all<slot + 1>();
    else return true;
  }

  // Pairs of plain steps have their own loop, so that their instructions are nearly contiguous. The other steps are
  // many instructions, which a short launch reads from memory: with kMoves they are compiled once for both slots.
  __device__ void run_steady() {
    int slot = C::kBegins ? 1 : 0;
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      while (slot == 0 && !fresh &&
             (C::kListed ? j > first + 1 : j > max(first, plain_first) + 1 && j <= plain_last + 1)) {
        advance<true>(0, p[0], p[kSpare]);
        advance<true>(1, p[kSpare], p[0]);
      }
      if (!advance(slot, p[0], p[kSpare])) return;
      if constexpr (C::kMoves) {
        move(p[0], p[kSpare]);
        slot ^= 1;
      } else if (!advance(1, p[kSpare], p[0])) {
        return;
      }
    }
  }
  __device__ void run() {
    // Group 0 goes first.
    if (C::kPingPong && group == C::kGroups - 1) named_arrive(kPingPongBarrier, kPingPongThreads);
    any_done = false;
    if constexpr (C::kBegins) {
      tiles = kNoTile, round = 1, fresh = false, j = first = 0, rows = {};  // slot 1 comes before slot 0
#pragma unroll
      for (uint32_t& two : p[0]) two = 0;
#pragma unroll
      for (float& y : o) y = 0.f;
      run_steady();
      if (!C::kF32Out) wait_stores();
      return;
    }
    tiles = round = 0, fresh = true;
    if constexpr (C::kOptions) slope = 0.f;
    wait_q();
    if (tile(0).last < 0) return;
    enter_tile();
    wait(shared + C::kKFull, 0);
    number = number_in(0);
    issue_scores(0, 0);
    wait_products<0>();
    pin(s);
    release(C::kKEmpty);
    if (j == first) release_q(0);
    hide();
    rows = {};
    if constexpr (C::kOptions) {
      Score<T, C::kTileK / 2> score{x.score};
      prepare(score, j);
      admit(p[0], true, score, [] {});
    } else {
      admit(p[0], true, [] {});
    }
#pragma unroll
    for (int n = 0; n < C::kDimV / 2; ++n) o[n] = 0.f;
    if constexpr (C::kSteady) {
      run_steady();
    } else {
      while (advance_all()) {}
    }
    if (!C::kF32Out) wait_stores();
  }
};

}  // namespace attune::sm90
