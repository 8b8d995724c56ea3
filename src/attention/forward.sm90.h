// Forward attention for Hopper: the kernel. Plain scores, 16-bit in, f32 softmax and sums; out as q, or f32, which may
// be a running result.
//
// A block a multiprocessor goes from tile of queries to tile of queries, longest first, by a counter. One thread
// streams tiles of q, k and v into shared memory; each of the other warpgroups owns 64 queries and does for key tile j
//   issue S(j+1) = Q K(j+1)^T | issue O += P(j) V(j) | softmax of S(j+1) while P(j) V(j) is still under way
// The key tiles of successive query tiles are one unbroken sequence of such steps: the first S of the next query tile
// is issued with the last P V of this one, and O leaves while the second S of the next one runs.
#pragma once
#include "core/softmax.h"
#include "core/tensor.h"
#include "machine/sm80/matrix.h"
#include "machine/sm90/barrier.h"
#include "machine/sm90/tma.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

struct ForwardParams {
  CUtensorMap q, k, v, out;
  float scale;                        // of the products, in base 2
  int rows, keys, heads, batch;       // queries and keys of a sequence
  int heads_per_key;
  int left, right, offset;            // key j is seen by query i where i + offset - left <= j <= i + offset + right
  int tiles_of_head, tiles;           // of queries
  int section_heads;                  // tiles are taken section by section of heads, so that their keys stay in cache
  bool longest_first;
  unsigned long long epoch;           // of this launch, in the upper bits of both counters
  unsigned long long* counters;       // [2]: tiles taken and blocks gone, in memory of any content
  float* lse;                         // null: not wanted
  Strides lse_stride;
  float* wide;                        // out in f32
  Strides wide_stride;
  int dim_v;
  bool accumulate;                    // merge with the rows that are there
};

inline constexpr int kCountBits = 24;  // of a counter; the rest is the epoch

constexpr float kLargestSum = 4096.f;  // of a thread's share of a row and key tile, before the maximum is raised
constexpr float kNone = -1e38f;        // the maximum of a row that has seen no key

// InPlace: scores become weights where they are, and every key tile looks for its maximum: fewer registers.
// Turns: warpgroups issue products one after the other. Wide: out in f32, straight from registers.
template <class T_, int Dim, int TileK, int Groups, int QStages, int Stages, bool InPlace, bool Turns, bool Wide>
struct ForwardShape {
  using T = T_;
  static constexpr bool kWide = Wide;
  static constexpr int kDim = Dim, kTileK = TileK, kGroups = Groups, kQStages = QStages, kStages = Stages;
  static constexpr bool kInPlace = InPlace, kTurns = Turns;
  static constexpr int kTileQ = 64 * kGroups, kThreads = 128 * (kGroups + 1), kPanels = kDim / 64;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : 24, kConsumerRegisters = kGroups == 3 ? 160 : 240;
  static constexpr int kReleases = kGroups * 4;  // arrivals that give a buffer back: a warp each
  // Shared memory: q, k, v, out, barriers, query tiles. A tile is panels of 64 columns, rows 128 bytes apart.
  static constexpr int kPanelQ = kTileQ * 128, kPanelK = kTileK * 128;
  static constexpr int kBytesQ = kPanelQ * kPanels, kBytesK = kPanelK * kPanels;
  static constexpr int kPanelsOut = kDim > 128 ? 2 : kPanels;  // out leaves so many panels at a time
  static constexpr int kQ = 0, kK = kQ + kQStages * kBytesQ, kV = kK + kStages * kBytesK,
                       kOut = kV + kStages * kBytesK, kBarriers = kOut + kPanelsOut * kPanelQ, kTiles = kBarriers + 256,
                       kSharedBytes = kTiles + 32 * 4;
  static constexpr int kQFull = kBarriers, kQEmpty = kQFull + 8 * kQStages, kKFull = kQEmpty + 8 * kQStages,
                       kKEmpty = kKFull + 8 * kStages, kVFull = kKEmpty + 8 * kStages, kVEmpty = kVFull + 8 * kStages;
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(kInPlace || kStages % 2 == 0, "the two P take turns with the slots");
};

// What the producer says of one tile of queries. Key tiles run from last down to first; last < 0: there are no more.
struct QueryTile { int row, head, batch, first, last; };

// ---- the producer

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

  __device__ void load(const CUtensorMap& map, int to, int full, int bytes, int panel, int row, int head, int batch,
                       Keep keep) const {
    arrive_expect(shared + full, bytes);
#pragma unroll
    for (int n = 0; n < C::kPanels; ++n)
      load_tile(shared + to + n * panel, map, shared + full, n * 64, row, head, batch, keep);
  }
  __device__ void run() const {
    prefetch_map(x.q), prefetch_map(x.k), prefetch_map(x.v);
    uint32_t step = 0, tiles = 0;
    int v_row = 0, v_head = 0, v_batch = 0;
    const auto load_v = [&](uint32_t at) {  // a step behind k: the order in which they are asked for
      const uint32_t slot = at % C::kStages;
      wait(shared + C::kVEmpty + 8 * slot, (at / C::kStages & 1) ^ 1);
      load(x.v, C::kV + slot * C::kBytesK, C::kVFull + 8 * slot, C::kBytesK, C::kPanelK, v_row, v_head, v_batch,
           Keep::last_to_go);
    };
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
      load(x.q, C::kQ + q * C::kBytesQ, C::kQFull + 8 * q, C::kBytesQ, C::kPanelQ, t.row, t.head, t.batch,
           Keep::first_to_go);
      index = int(gridDim.x) + take(x.counters, x.epoch);  // needed only after this tile's loads
      const int head = t.head / x.heads_per_key;
      for (int j = t.last; j >= t.first; --j, ++step) {
        const uint32_t k = step % C::kStages;
        wait(shared + C::kKEmpty + 8 * k, (step / C::kStages & 1) ^ 1);
        load(x.k, C::kK + k * C::kBytesK, C::kKFull + 8 * k, C::kBytesK, C::kPanelK, j * C::kTileK, head, t.batch,
             Keep::last_to_go);
        if (step > 0) load_v(step - 1);
        v_row = j * C::kTileK, v_head = head, v_batch = t.batch;
      }
    }
    if (step > 0) load_v(step - 1);
    // The last block leaves nothing of this epoch behind: a graph launches it again.
    if (take(x.counters + 1, x.epoch) == int(gridDim.x) - 1) x.counters[0] = 0, x.counters[1] = 0;
  }
};

// ---- the softmax of the two rows that a thread holds, in base 2

// `max` is that of the row's first key tile, and is raised only where weights of a later one grow too large: most tiles
// need no maximum at all.
struct Rows { float max[2], sum[2]; };

template <int N>
__device__ void largest(const float (&s)[N], float (&top)[2]) {
  float a[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
  for (int n = 4; n < N; n += 4) {
    a[0][0] = fmaxf(a[0][0], s[n]), a[0][1] = fmaxf(a[0][1], s[n + 1]);
    a[1][0] = fmaxf(a[1][0], s[n + 2]), a[1][1] = fmaxf(a[1][1], s[n + 3]);
  }
  top[0] = fmaxf(a[0][0], a[0][1]), top[1] = fmaxf(a[1][0], a[1][1]);
}

// What was summed so far is to be multiplied by `alpha`.
__device__ inline void raise_max(const float (&top)[2], Rows& rows, float (&alpha)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float t = fmaxf(sm80::row_max(top[r]) * scale, rows.max[r]);
    alpha[r] = sm80::exp2_fast(rows.max[r] - t);
    rows.max[r] = t, rows.sum[r] *= alpha[r];
  }
}

template <class T, int From, int To, int N>
__device__ void weights(const float (&s)[N], uint32_t (&p)[N / 2], const Rows& rows, float scale, float (&sum)[4]) {
  using sm80::exp2_fast;
#pragma unroll
  for (int n = From; n < To; n += 4) {
    const float a = exp2_fast(fmaf(s[n], scale, -rows.max[0])), b = exp2_fast(fmaf(s[n + 1], scale, -rows.max[0]));
    const float c = exp2_fast(fmaf(s[n + 2], scale, -rows.max[1])), d = exp2_fast(fmaf(s[n + 3], scale, -rows.max[1]));
    p[n / 2] = sm80::pack<T>(a, b), p[n / 2 + 1] = sm80::pack<T>(c, d);
    sum[0] += a, sum[1] += b, sum[2] += c, sum[3] += d;
  }
}

// One key tile. `fresh`: the first of new rows; the old ones go to `done`. halfway(again) is called in the middle;
// again: not for the first time. Returns whether O must be rescaled.
template <class T, int N, class Halfway>
__device__ bool softmax(const float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, Rows& done, float (&alpha)[2],
                        float scale, bool fresh, Halfway halfway) {
  bool raised = fresh;
  while (true) {
    if (raised) {
      if (fresh) done = rows, rows = {{kNone, kNone}, {0.f, 0.f}};
      float top[2];
      largest(s, top);
      raise_max(top, rows, alpha, scale);
    }
    float sum[4] = {};
    constexpr int kHalf = N / 8 * 4;
    weights<T, 0, kHalf>(s, p, rows, scale, sum);
    halfway(raised && !fresh);
    weights<T, kHalf, N>(s, p, rows, scale, sum);
    sum[0] += sum[1], sum[2] += sum[3];
    if (raised || !__any_sync(~0u, !(fmaxf(sum[0], sum[2]) <= kLargestSum))) {
      rows.sum[0] += sum[0], rows.sum[1] += sum[2];
      return raised && !fresh;
    }
    raised = true;  // some weight grew too large for the old maximum: once more, with the true one
  }
}

// The same where there are no registers for a second P: scores are overwritten, so the maximum comes first. P may be
// written only after product_done().
template <class T, int N, class Done>
__device__ bool softmax_in_place(float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, Rows& done, float (&alpha)[2],
                                 float scale, bool fresh, Done product_done) {
  using sm80::exp2_fast;
  if (fresh) done = rows, rows = {{kNone, kNone}, {0.f, 0.f}};
  float top[2], sum[4] = {};
  largest(s, top);
  const float over = fmaxf(fmaf(top[0], scale, -rows.max[0]), fmaf(top[1], scale, -rows.max[1]));
  const bool raised = __any_sync(~0u, over > 7.f);
  if (raised) raise_max(top, rows, alpha, scale);
#pragma unroll
  for (int n = 0; n < N; n += 4) {
    s[n] = exp2_fast(fmaf(s[n], scale, -rows.max[0])), s[n + 1] = exp2_fast(fmaf(s[n + 1], scale, -rows.max[0]));
    s[n + 2] = exp2_fast(fmaf(s[n + 2], scale, -rows.max[1]));
    s[n + 3] = exp2_fast(fmaf(s[n + 3], scale, -rows.max[1]));
    sum[0] += s[n], sum[1] += s[n + 1], sum[2] += s[n + 2], sum[3] += s[n + 3];
  }
  product_done(false);
  pin(s);  // else packing is moved above the wait
#pragma unroll
  for (int n = 0; n < N / 2; ++n) p[n] = sm80::pack<T>(s[2 * n], s[2 * n + 1]);
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
  return raised && !fresh;
}

// ---- a consumer warpgroup

template <class C>
struct Consumer {
  using T = typename C::T;
  const ForwardParams& x;
  const uint32_t shared;
  const int group, warp, lane;

  float s[C::kTileK / 2];
  float o[C::kDim / 2];
  static constexpr int kSpare = C::kInPlace ? 0 : 1;
  uint32_t p[1 + kSpare][C::kTileK / 4];  // pairs, as the product wants them: one being multiplied, one being made
  Rows rows, done;                        // of this query tile, and of the one before
  float alpha[2];
  uint32_t tiles;                         // query tiles begun, less one
  uint32_t round;                         // parity of key tiles begun / kStages; their slot is a template argument
  bool any_done;                          // a query tile came before this one
  int j, first;                           // this key tile, and the last one of the query tile
  int plain_first, plain_last;            // key tiles of this query tile of which every row sees all
  bool fresh, raised;

  __device__ void release(int barrier) const {
    if (lane == 0) arrive(shared + barrier);
  }
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
    const uint32_t v = operand(shared + C::kV + v_slot * C::kBytesK, C::kPanelK);
#pragma unroll
    for (int n = 0; n < C::kTileK / 16; ++n)
      Product<T, C::kDim>::registers(o, weights + 4 * n, v + n * 16 * 128 / 16, n > 0 ? 1 : add);
    close_products();
  }

  // Only key tiles that cross an edge of the band, or the end of the keys, have something to hide.
  __device__ void hide() {
    if (j >= plain_first && j <= plain_last) return;
    const int row = tile(tiles).row + group * 64 + warp * 16 + lane / 4 + x.offset;
    const int column = j * C::kTileK + lane % 4 * 2;
    const int last[2] = {min(x.keys - 1, row + x.right) - column, min(x.keys - 1, row + 8 + x.right) - column};
    const int from[2] = {row - x.left - column, row + 8 - x.left - column};
#pragma unroll
    for (int n = 0; n < C::kTileK / 2; ++n) {
      const int c = n / 4 * 8 + n % 2, r = n / 2 % 2;
      if (c > last[r] || c < from[r]) s[n] = -INFINITY;
    }
  }

  // Each warp ends and stores its own 16 rows.
  __device__ void finish(const QueryTile t, const Rows& rows) {
    if constexpr (C::kWide) return finish_wide(t, rows);
    float inverse[2];
    const int row = t.row + group * 64 + warp * 16;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sm80::row_sum(rows.sum[r]);
      const bool any = rows.max[r] > kNone / 2;  // some key was seen
      inverse[r] = any ? 1.f / sum : 0.f;
      const int i = row + lane / 4 + 8 * r;
      if (x.lse && lane % 4 == 0 && i < x.rows)
        *lse_at(t, i) = any ? (rows.max[r] + __log2f(sum)) * kLn2 : -INFINITY;
    }
    const uint32_t to = shared + C::kOut + (group * 64 + warp * 16) * 128;
    const int r = lane % 16, half = lane / 16;
#pragma unroll
    for (int panel = 0; panel < C::kPanels; panel += C::kPanelsOut) {
      if (lane == 0) wait_stores_read();  // of the rows before
      __syncwarp();
#pragma unroll
      for (int n = 0; n < C::kPanelsOut * 4; ++n) {
        const float* y = o + 32 * panel + 8 * n;
        store_matrix4(to + n / 4 * C::kPanelQ + r * 128 + (((n % 4 * 2 + half) ^ (r & 7)) << 4),
                      sm80::pack<T>(y[0] * inverse[0], y[1] * inverse[0]),
                      sm80::pack<T>(y[2] * inverse[1], y[3] * inverse[1]),
                      sm80::pack<T>(y[4] * inverse[0], y[5] * inverse[0]),
                      sm80::pack<T>(y[6] * inverse[1], y[7] * inverse[1]));
      }
      publish_shared();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int n = 0; n < C::kPanelsOut; ++n)
          store_tile(x.out, to + n * C::kPanelQ, (panel + n) * 64, row, t.head, t.batch);
        close_stores();
      }
    }
  }

  __device__ float* lse_at(const QueryTile& t, int i) const {
    return x.lse + t.batch * x.lse_stride.batch + i * x.lse_stride.seq + t.head * x.lse_stride.head;
  }
  __device__ void finish_wide(const QueryTile t, const Rows& rows) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sm80::row_sum(rows.sum[r]);
      const bool any = rows.max[r] > kNone / 2;
      const int i = t.row + group * 64 + warp * 16 + lane / 4 + 8 * r;
      const float mine = any ? (rows.max[r] + __log2f(sum)) * kLn2 : -INFINITY;
      const bool there = i < x.rows;
      const Share share = merge(x.accumulate && there ? *lse_at(t, i) : -INFINITY, mine);
      __syncwarp();  // all four lanes of a row have read it
      if (!there) continue;
      if (x.lse && lane % 4 == 0) *lse_at(t, i) = share.lse;
      const float now = any ? share.b / sum : 0.f;
      float* to = x.wide + t.batch * x.wide_stride.batch + i * x.wide_stride.seq + t.head * x.wide_stride.head;
#pragma unroll
      for (int n = 0; n < C::kDim / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column >= x.dim_v) break;
        float2* place = reinterpret_cast<float2*>(to + column);
        float2 two = {o[4 * n + 2 * r] * now, o[4 * n + 2 * r + 1] * now};
        if (share.a != 0.f) two.x += place->x * share.a, two.y += place->y * share.a;
        *place = two;
      }
    }
  }

  __device__ void turn_begin() const {
    if (C::kTurns) named_sync(1 + group, 256);
  }
  __device__ void turn_end() const {
    if (C::kTurns) named_arrive(1 + (group + 1) % C::kGroups, 256);
  }
  __device__ const QueryTile& tile(uint32_t n) const {
    return *reinterpret_cast<const QueryTile*>(__cvta_shared_to_generic(shared + C::kTiles + 32 * (n % 4)));
  }
  __device__ void wait_q() const { wait(shared + C::kQFull + 8 * (tiles % C::kQStages), tiles / C::kQStages & 1); }
  __device__ void enter_tile() {
    const QueryTile& t = tile(tiles);
    const int low = t.row + group * 64 + x.offset, high = low + 63;
    j = t.last, first = t.first;
    plain_first = max(0, high - x.left + C::kTileK - 1) / C::kTileK;
    plain_last = min(x.keys, low + x.right + 1) / C::kTileK - 1;
  }

  // One key tile, in slot `slot` of v. On entry its P is in `now` and no product is under way; on return P of the next
  // step is in `then`. False after the last tile.
  template <int slot>
  __device__ bool advance(uint32_t (&now)[C::kTileK / 4], uint32_t (&then)[C::kTileK / 4]) {
    constexpr int next = (slot + 1) % C::kStages;
    const bool last = j == first;
    if (last) {
      ++tiles;
      wait_q();
      if (tile(tiles).last < 0) {
        finish_before();
        wait(shared + C::kVFull + 8 * slot, round);
        issue_sums(now, slot, !fresh);
        wait_products<0>();
        pin(o);
        finish(tile(tiles - 1), rows);
        return false;
      }
    }
    wait(shared + C::kKFull + 8 * next, round ^ (next == 0));
    turn_begin();
    issue_scores(tiles % C::kQStages, next);
    finish_before();
    wait(shared + C::kVFull + 8 * slot, round);
    issue_sums(now, slot, !fresh);
    turn_end();
    wait_products<1>();  // the scores
    pin(s);
    release(C::kKEmpty + 8 * next);
    --j, fresh = last, any_done |= last;
    if (next == 0) round ^= 1;
    if (last) enter_tile();
    if (j == first) release(C::kQEmpty + 8 * (tiles % C::kQStages));
    hide();
    const auto product_done = [&](bool again) {
      wait_products<0>();
      pin(o);
      if (!again) release(C::kVEmpty + 8 * slot);
    };
    admit(then, fresh, product_done);
    return true;
  }
  template <class Done>
  __device__ void admit(uint32_t (&to)[C::kTileK / 4], bool first_of_rows, Done product_done) {
    if constexpr (C::kInPlace)
      raised = softmax_in_place<T>(s, to, rows, done, alpha, x.scale, first_of_rows, product_done);
    else
      raised = softmax<T>(s, to, rows, done, alpha, x.scale, first_of_rows, product_done);
  }
  // What O needs before P V is added to it: the tile before leaves, or a rescale.
  __device__ void finish_before() {
    if (fresh) {
      if (any_done) finish(tile(tiles - (j == first ? 2 : 1)), done);
    } else if (raised) {
#pragma unroll
      for (int n = 0; n < C::kDim / 2; ++n) o[n] *= alpha[n / 2 % 2];
    }
  }
  template <int slot = 0>
  __device__ bool advance_all() {
    if (!advance<slot>(p[slot & kSpare], p[(slot + 1) & kSpare])) return false;
    if constexpr (slot + 1 < C::kStages) return advance_all<slot + 1>();
    else return true;
  }

  __device__ void run() {
    if (C::kTurns && group == C::kGroups - 1) named_arrive(1, 256);  // group 0 goes first
    tiles = round = 0, fresh = true, any_done = false;
    wait_q();
    if (tile(0).last < 0) return;
    enter_tile();
    wait(shared + C::kKFull, 0);
    issue_scores(0, 0);
    wait_products<0>();
    pin(s);
    release(C::kKEmpty);
    if (j == first) release(C::kQEmpty);
    hide();
    rows = {};
    admit(p[0], true, [](bool) {});
#pragma unroll
    for (int n = 0; n < C::kDim / 2; ++n) o[n] = 0.f;
    while (advance_all()) {}
    if (!C::kWide && lane == 0) wait_stores();
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) forward_kernel(const __grid_constant__ ForwardParams x) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    for (int n = 0; n < C::kQStages; ++n)
      barrier_init(shared + C::kQFull + 8 * n, 1), barrier_init(shared + C::kQEmpty + 8 * n, C::kReleases);
    for (int n = 0; n < C::kStages; ++n) {
      barrier_init(shared + C::kKFull + 8 * n, 1), barrier_init(shared + C::kKEmpty + 8 * n, C::kReleases);
      barrier_init(shared + C::kVFull + 8 * n, 1), barrier_init(shared + C::kVEmpty + 8 * n, C::kReleases);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (group == 0) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>{x, shared}.run();
  } else {
    grow_registers<C::kConsumerRegisters>();
    Consumer<C> consumer{x, shared, group - 1, warp, int(threadIdx.x % 32)};
    consumer.run();
  }
}

}  // namespace attune::sm90
