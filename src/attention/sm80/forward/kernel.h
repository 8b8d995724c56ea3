// SPDX-License-Identifier: Apache-2.0
// Forward attention with mma.sync and cp.async, for every GPU from sm_80 on.
//   load q -> for each key tile: wait k, load v; scores, hide, admit; wait v, load next k; accumulate -> store
// K and V have one buffer each: the load of one overlaps the product of the other, and two CTAs per SM hide the rest. A
// warp owns 16 or 32 rows; with 32, every fragment of K and V feeds two products. The reference of a row moves only
// when its maximum grew by more than 2^kLazy. The decision is per row, so the bits of a row do not depend on the rest
// of its tile.
#pragma once
#include <cstddef>

#include "attention/sm80/forward/options.h"
#include "attention/sm80/tile_steps.h"

namespace attune::sm80 {

constexpr float kLazy = 8.f;
constexpr int kMostForwardSplits = 128;
constexpr int kAhead = 3;  // 2 to 4 compile to the same schedule

// Compile-time configuration.
struct ForwardConfig {
  int dim = 128, dim_v = dim;
  int tile_q = 128, tile_k = 64, warps = 4;
  bool options = false;  // options that change scores
  int blocks_per_sm = 2;
};

template <class T, ForwardConfig C>
struct Forward {
  static constexpr int kDim = C.dim, kDimV = C.dim_v, kTileQ = C.tile_q, kTileK = C.tile_k, kWarps = C.warps;
  static constexpr int kBlocksPerSm = C.blocks_per_sm;
  static constexpr bool kOptions = C.options;
  static constexpr int kThreads = kWarps * 32, kRowsOfWarp = kTileQ / kWarps, kM = kRowsOfWarp / 16;
  static_assert(kRowsOfWarp % 16 == 0 && kTileK % 16 == 0 && kDim % 16 == 0 && kDimV % 16 == 0);
  using TileOfQ = SharedTile<kTileQ, kDim>;
  using TileOfK = SharedTile<kTileK, kDim>;
  using TileOfV = SharedTile<kTileK, kDimV>;
  struct Shared {
    char q[TileOfQ::kBytes], k[TileOfK::kBytes], v[TileOfV::kBytes];
  };
  static constexpr int kK = offsetof(Shared, k), kV = offsetof(Shared, v), kSharedBytes = sizeof(Shared);

  const ForwardParams& x;
  const Problem& p;
  const DenseArgs& a;
  const int lane, warp;
  const uint32_t q_shared, k_shared, v_shared;
  ForwardPlace& at;
  int2* const seen;      // [kTileQ]: half-open range [x, y) of the keys that each row sees
  float* const weights;  // weights of KV splits; overlays the tiles
  Accumulator o[kM][kDimV / 8];
  float ref[kM][2], sum[kM][2];

  __device__ Forward(const ForwardParams& params, char* shared, ForwardPlace& place, int2* seen_keys)
      : x(params),
        p(params.problem),
        a(params.args),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        q_shared(shared_address(shared)),
        k_shared(q_shared + kK),
        v_shared(k_shared + (kV - kK)),
        at(place),
        seen(seen_keys),
        weights(reinterpret_cast<float*>(shared)) {}

  __device__ int position(int row) const { return int(x.group.divide(row)); }
  __device__ int head(const ForwardPlace& at, int row) const { return at.head_q + int(x.group.rest(row)); }
  // Token of a row of the CTA.
  __device__ int64_t token(const ForwardPlace& at, int row) const { return at.seq.q_first + position(at.first + row); }
  // Row of the CTA that this thread's accumulators hold, for fragment m and half 0 or 1.
  __device__ int row_of(int m, int half) const { return warp * kRowsOfWarp + m * 16 + half * 8 + lane / 4; }
  // Half-open range [x, y) of the keys that query i sees.
  __device__ int2 keys_seen(const ForwardPlace& at, int i) const {
    const BandWalk walk{at.seq.band, at.seq.len_k, kTileK};
    if (at.seq.band.k_step != 1) return {walk.first_key(i), walk.last_key(i)};
    return {clamp(i + at.from, 0, at.seq.len_k), clamp(i + at.until, 0, at.seq.len_k)};
  }

  // Called by every thread, so that no thread waits before its first load.
  __device__ ForwardPlace find_place() const {
    ForwardPlace at;
    // The CTAs of a packed head follow each other, so its keys stay in L2; causal masks start with the longest. Where
    // lengths differ, the last row blocks of all sequences come first: only long sequences have them.
    uint32_t n = x.order ? uint32_t(x.order[blockIdx.x]) : blockIdx.x;
    if (x.uniform) at.block = int(x.row_blocks.rest(n)), n = x.row_blocks.divide(n);
    at.split = int(x.splits.rest(n)), n = x.splits.divide(n);
    at.packed_head = int(x.packed_heads.rest(n)), n = x.packed_heads.divide(n);
    at.b = int(x.uniform ? n : x.batch.rest(n));
    if (!x.uniform) at.block = int(x.batch.divide(n));
    at.block = int(x.row_blocks.by) - 1 - at.block;
    at.head_q = at.packed_head * int(x.group.by), at.head_kv = int(x.heads_per_key.divide(at.head_q));
    at.seq = x.uniform ? x.seq : sequence(p, a, at.b);
    if (x.uniform) at.seq.q_batch = at.seq.k_batch = at.b;
    if (uint64_t(at.seq.len_q) * x.heads_per_key.by <= x.decode_rows) at.seq.len_q = 0;
    at.from = at.seq.band.q_first - at.seq.band.left - at.seq.band.k_first;
    at.until = at.seq.band.q_first + at.seq.band.right - at.seq.band.k_first + 1;
    at.k = x.k.row(at.seq.k_batch, at.seq.k_first, at.head_kv);
    at.v = x.v.row(at.seq.k_batch, at.seq.k_first, at.head_kv);
    const Blocks size = p.mask.blocks;
    int last;
    if (size.q) {  // the rows of a CTA lie within one query block
      const int per_block = (size.q + kTileQ - 1) / kTileQ, index = at.block % per_block;
      const int64_t start = int64_t(at.block / per_block) * size.q;
      at.first = clamp(start + index * kTileQ, 0, at.seq.len_q);
      last = clamp(start + min((index + 1) * kTileQ, size.q), 0, at.seq.len_q);
    } else {
      const uint32_t count = at.seq.len_q * x.group.by;
      at.first = int(min(uint32_t(at.block) * kTileQ, count)), last = int(min(uint32_t(at.first) + kTileQ, count));
    }
    at.rows = last - at.first;
    if (at.rows <= 0) return at;
    at.q = x.q.row(at.seq.q_batch, token(at, 0), head(at, at.first));
    at.out = x.out.row(at.seq.q_batch, token(at, 0), head(at, at.first));
    const int2 top = keys_seen(at, position(at.first)), bottom = keys_seen(at, position(last - 1));
    at.open_first = bottom.x, at.open_last = top.y;
    int all;
    if (size.q) {
      const int row = at.first / size.q;
      at.column = list(at).column + list(at).entry(row);
      at.first_tile = 0, all = list(at).count(row) * int(x.tiles_per_block.by);
    } else {
      at.first_tile = top.x / kTileK, all = max(0, (bottom.y + kTileK - 1) / kTileK - at.first_tile);
    }
    // The first `more` splits get one extra tile.
    const int each = int(x.splits.divide(all)), more = int(x.splits.rest(all));
    at.first_tile += at.split * each + min(at.split, more), at.tiles = each + (at.split < more);
    return at;
  }
  __device__ BlockList list(const ForwardPlace& at) const {
    return {p.mask.blocks, a.row<const int32_t>(Role::block_begin, at.b, 0, at.head_q),
            a.row<const int32_t>(Role::block_column)};
  }
  // The n-th tile; `partial` if any pair in it is hidden.
  __device__ Tile tile(const ForwardPlace& at, int n) const {
    n += at.first_tile;
    int first = n * kTileK, last = min(first + kTileK, at.seq.len_k);
    if (p.mask.blocks.q) {
      const int block = int(x.tiles_per_block.divide(n)), index = n - block * int(x.tiles_per_block.by);
      const int size = p.mask.blocks.k;
      const int64_t begin = int64_t(at.column[block]) * size, start = begin + index * kTileK;
      last = clamp(min(start + int64_t(kTileK), begin + size), 0, at.seq.len_k), first = clamp(start, 0, last);
    }
    return {first, last, at.open_first > first || at.open_last < first + kTileK || last < first + kTileK};
  }

  // List entry of the n-th tile.
  __device__ int entry(const ForwardPlace& at, int n) const {
    return int(at.column - list(at).column) + int(x.tiles_per_block.divide(n + at.first_tile));
  }

  __device__ void find_seen(const ForwardPlace& at) const {
    const int row = warp * kRowsOfWarp + lane;
    if (lane < kRowsOfWarp) seen[row] = row < at.rows ? keys_seen(at, position(at.first + row)) : int2{0, 0};
  }

  // Address of a row of q or out.
  __device__ char* row_at(const ForwardPlace& at, Role role, int row) const {
    const ByteRows& rows = role == Role::q ? x.q : x.out;
    if (x.group.by == 1) return (role == Role::q ? at.q : at.out) + row * rows.seq;
    return rows.row(at.seq.q_batch, token(at, row), head(at, at.first + row));
  }
  __device__ void load_q(const ForwardPlace& at) const {
    constexpr int kChunks = TileOfQ::kPanels * 8, kStep = kThreads / kChunks;
    const int row = threadIdx.x / kChunks, column = threadIdx.x % kChunks * 8;
    if (at.rows == kTileQ && p.dim_qk == TileOfQ::kPanels * 64 && x.group.by == 1) {
      const char* from = at.q + row * x.q.seq + column * sizeof(T);
#pragma unroll
      for (int n = 0; n < kTileQ / kStep; ++n, from += kStep * x.q.seq)
        copy16(q_shared + TileOfQ::offset(row + n * kStep, column), from);
      return;
    }
    const int count = column < p.dim_qk ? at.rows : 0;
#pragma unroll 1
    for (int n = 0; n < kTileQ / kStep; ++n) {
      const int r = row + n * kStep;
      copy16(q_shared + TileOfQ::offset(r, column), r < count ? row_at(at, Role::q, r) + column * sizeof(T) : at.q,
             r < count);
    }
  }

  // Each thread copies one 16-byte column of every kStep-th row.
  template <class Layout>
  __device__ void load_keys(const ForwardPlace& at, Role role, uint32_t shared, int dim, Tile t) const {
    constexpr int kChunks = Layout::kPanels * 8, kStep = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kTileK % kStep == 0);
    const int row = threadIdx.x / kChunks, column = threadIdx.x % kChunks * 8;
    const int count = column < dim ? t.last - t.first : 0;
    const uint32_t to = shared + Layout::offset(row, column);
    if (p.keys == KeySource::paged) return load_pages<Layout, kStep>(at, role, shared, t.first, row, column, count);
    const int64_t stride = role == Role::k ? x.k.seq : x.v.seq;
    const char* from = (role == Role::k ? at.k : at.v) + (t.first + row) * stride + column * sizeof(T);
    // Rows 8 apart have the same swizzle: one address (or two) and constant offsets suffice.
    constexpr bool kTwo = kWarps == 2 && kStep == 4, kQuick = kStep % 8 == 0 || kTwo;
    const uint32_t odd = kTwo ? shared + Layout::offset(row + kStep, column) - kStep * 128 : 0;
    const auto place = [&](int n) {
      if (!kQuick) return shared + Layout::offset(row + n * kStep, column);
      return (kTwo && n % 2 ? odd : to) + n * kStep * 128;
    };
    if (kQuick && t.last - t.first == kTileK && dim == Layout::kPanels * 64) {
#pragma unroll
      for (int n = 0; n < kTileK / kStep; ++n, from += kStep * stride) copy16(place(n), from);
    } else {
#pragma unroll
      for (int n = 0; n < kTileK / kStep; ++n, from += kStep * stride) copy16(place(n), from, row + n * kStep < count);
    }
  }
  template <class Layout, int kStep>
  __device__ void load_pages(const ForwardPlace& at, Role role, uint32_t shared, int first, int row, int column,
                             int count) const {
    const PagedRows<const T> rows(p, a, role, at.seq, at.b, at.head_kv);
#pragma unroll 1
    for (int n = 0; n < kTileK / kStep; ++n) {
      const bool there = row + n * kStep < count;
      copy16(shared + Layout::offset(row + n * kStep, column),
             there ? rows.row(first + row + n * kStep) + column : rows.pool.data, there);
    }
  }

  // s = q k^T. Fragments of k are loaded kAhead steps before their products: with eight warps per SM, no other warp
  // hides the latency of shared memory.
  __device__ void scores(Accumulator (&s)[kM][kTileK / 8]) const {
    constexpr int kPairs = kTileK / 16, kSteps = kDim / 16 * kPairs;
    const uint32_t q_first = q_shared + TileOfQ::offset(warp * kRowsOfWarp + lane % 16, lane / 16 * 8);
    const uint32_t k_first = k_shared + TileOfK::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    uint32_t keys[kAhead][4];
    FragmentA q[2][kM];
    const auto load_k = [&](int step) {
      load_matrix4(keys[step % kAhead], TileOfK::further(k_first, step / kPairs * 16) + step % kPairs * 16 * 128);
    };
    const auto load_q = [&](int k) {
#pragma unroll
      for (int m = 0; m < kM; ++m) load_matrix4(q[k % 2][m].r, TileOfQ::further(q_first, k * 16) + m * 16 * 128);
    };
    load_q(0);
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load_k(step);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kTileK / 8; ++n) s[m][n] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int k = step / kPairs, n = step % kPairs * 2;
      if (n == 0 && k + 1 < kDim / 16) load_q(k + 1);
      const uint32_t(&two)[4] = keys[step % kAhead];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(s[m][n], q[k % 2][m], {two[0], two[1]});
        multiply_add<T>(s[m][n + 1], q[k % 2][m], {two[2], two[3]});
      }
      if (step + kAhead < kSteps) load_k(step + kAhead);
    }
  }

  // Masks the keys that a row does not see. Without options, only edge tiles need it.
  __device__ void hide(Accumulator (&s)[kM][kTileK / 8], Tile t) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 keys = seen[row_of(m, half)];
        const int column = t.first + lane % 4 * 2, from = keys.x - column, until = min(keys.y, t.last) - column;
#pragma unroll
        for (int n = 0; n < kTileK / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& y = s[m][n].c[2 * half + e];
            if (n * 8 + e < from || n * 8 + e >= until) y = -INFINITY;
          }
      }
  }

  __device__ void admit(Accumulator (&s)[kM][kTileK / 8], float scale) {
    if constexpr (kM > 1 && kTileK <= 64 && !kOptions) return admit_tiles(s, o, ref, sum, scale, kLazy);
#pragma unroll
    for (int m = 0; m < kM; ++m) admit_tile<kOptions>(s[m], o[m], ref[m], sum[m], scale, kLazy);
  }

  // o += p v. Fragments of v are loaded ahead in the same way.
  __device__ void accumulate(const Accumulator (&s)[kM][kTileK / 8]) {
    constexpr int kPairs = kDimV / 16, kSteps = kTileK / 16 * kPairs;
    const uint32_t v_first = v_shared + TileOfV::offset(lane % 16, lane / 16 * 8);
    uint32_t values[kAhead][4];
    const auto load_v = [&](int step) {
      load_matrix4_transposed(values[step % kAhead],
                              TileOfV::further(v_first, step % kPairs * 16) + step / kPairs * 16 * 128);
    };
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load_v(step);
    FragmentA weights[kM];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int k = step / kPairs, d = step % kPairs * 2;
      if (d == 0) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const Accumulator &low = s[m][2 * k], &high = s[m][2 * k + 1];
          weights[m] = {{pack<T>(low.c[0], low.c[1]), pack<T>(low.c[2], low.c[3]), pack<T>(high.c[0], high.c[1]),
                         pack<T>(high.c[2], high.c[3])}};
        }
      }
      const uint32_t(&two)[4] = values[step % kAhead];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(o[m][d], weights[m], {two[0], two[1]});
        multiply_add<T>(o[m][d + 1], weights[m], {two[2], two[3]});
      }
      if (step + kAhead < kSteps) load_v(step + kAhead);
    }
  }

  __device__ void run() {
    const ForwardPlace here = find_place();
    if (here.rows <= 0) return;
    load_q(here);
    if (here.tiles > 0) load_keys<TileOfK>(here, Role::k, k_shared, p.dim_qk, tile(here, here.tiles - 1));
    close_group();
    find_seen(here);
    if (threadIdx.x == 0) at = here;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) ref[m][half] = -INFINITY, sum[m][half] = 0.f;
#pragma unroll
      for (int d = 0; d < kDimV / 8; ++d) o[m][d] = {};
    }
    const float scale = kOptions ? 1.f : scale_of(p, a) * kLog2e;
    General score(p, a, at.seq, at.b, at.head_q);
    for (int n = at.tiles - 1; n >= 0; --n) {
      const Tile t = tile(at, n);
      if (kOptions && score.block_bias) score.entry = entry(at, n);
      wait_groups<0>();
      __syncthreads();
      load_keys<TileOfV>(at, Role::v, v_shared, p.dim_v, t);
      close_group();
      Accumulator s[kM][kTileK / 8];
      scores(s);
      if constexpr (kOptions) apply_options(*this, s, t, score);
      if (kOptions || t.partial) hide(s, t);
      admit(s, scale);
      if constexpr (kOptions)
        if (p.has(Option::dropout)) drop_weights(*this, s, t, score);
      wait_groups<0>();
      __syncthreads();
      if (n > 0) load_keys<TileOfK>(at, Role::k, k_shared, p.dim_qk, tile(at, n - 1));
      close_group();
      accumulate(s);
    }
    if (at.tiles == 0) {  // q has not been waited for yet, and rows leave through its memory
      wait_groups<0>();
      __syncthreads();
    }
    store();
    if (x.splits.by > 1) combine_splits();
  }

  // Each of the four lanes that share rows finishes one row. 16-bit rows then leave through the warp's own rows of q,
  // which are no longer needed, in 16-byte chunks. f32 rows are stored directly, 32 bytes by four lanes.
  __device__ void store() {
    const bool whole = x.splits.by == 1, f32 = !whole || p.dtype.out == DType::f32;
    const int mine = lane % 4, row = row_of(mine / 2, mine % 2);
    SoftmaxRow state;
#pragma unroll
    for (int n = 0; n < 2 * kM; ++n) {
      const float total = row_sum(sum[n / 2][n % 2]);
      if (n == mine) state = {ref[n / 2][n % 2], total};
    }
    RowEnd end(state);
    const bool there = mine < 2 * kM && row < at.rows;
    if (there && whole) merge_end(end, row);
#pragma unroll
    for (int n = 0; n < 2 * kM; ++n) {
      const float now = __shfl_sync(~0u, end.now, lane / 4 * 4 + n);
#pragma unroll
      for (int d = 0; d < kDimV / 8; ++d)
#pragma unroll
        for (int e = n % 2 * 2; e < n % 2 * 2 + 2; ++e) o[n / 2][d].c[e] *= now;
    }
    if (!f32) {
      store_narrow();
    } else {
#pragma unroll
      for (int n = 0; n < 2 * kM; ++n) store_f32(n / 2, n % 2, __shfl_sync(~0u, end.before, lane / 4 * 4 + n));
    }
    if (!there) return;
    if (whole) write_lse(end, row);
    else x.partial_lse[at.split * split_rows() + row_index(row)] = end.lse;
  }
  __device__ void store_f32(int m, int half, float before) const {
    const int row = row_of(m, half);
    if (row >= at.rows) return;
    float* to = x.splits.by == 1 ? reinterpret_cast<float*>(row_at(at, Role::out, row))
                                 : x.partial_out + (at.split * split_rows() + row_index(row)) * p.dim_v;
    // Reads the old values eight at a time before writing any of them; otherwise each read waits for the previous
    // write.
    constexpr int kAtOnce = 8;
#pragma unroll
    for (int first = 0; first < kDimV / 8; first += kAtOnce) {
      float2 was[kAtOnce] = {};
      const auto place = [&](int d) { return reinterpret_cast<float2*>(to + d * 8 + lane % 4 * 2); };
      const auto there = [&](int d) { return d < kDimV / 8 && d * 8 < p.dim_v; };
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        if (before != 0.f && there(first + n)) was[n] = *place(first + n);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int d = first + n;
        if (d >= kDimV / 8) break;
        if (there(d))
          *place(d) = {o[m][d].c[2 * half] + was[n].x * before, o[m][d].c[2 * half + 1] + was[n].y * before};
      }
    }
  }
  __device__ void store_narrow() const {
    using TileOfO = SharedTile<kTileQ, kDimV>;
    static_assert(kDimV <= kDim);  // keeps a warp's rows of o within its rows of q
    constexpr int kChunks = kDimV / 8, kSteps = kRowsOfWarp * kChunks / 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int d = 0; d < kDimV / 8; ++d)
          store_shared(q_shared + TileOfO::offset(row_of(m, half), d * 8) + lane % 4 * 4,
                       pack<T>(o[m][d].c[2 * half], o[m][d].c[2 * half + 1]));
    __syncwarp();
    const auto row = [&](int n) { return warp * kRowsOfWarp + (n * 32 + lane) / kChunks; };
    const auto column = [&](int n) { return (n * 32 + lane) % kChunks * 8; };
    const auto chunk = [&](int n) { return load_shared16(q_shared + TileOfO::offset(row(n), column(n))); };
    if (at.rows == kTileQ && p.dim_v == kDimV && x.group.by == 1 && 32 % kChunks == 0) {
      // Reads all chunks of a lane before writing the first; otherwise each read waits for the previous write.
      char* to = at.out + row(0) * x.out.seq + column(0) * sizeof(T);
      const int64_t step = 32 / kChunks * x.out.seq;
      uint4 all[kSteps];
#pragma unroll
      for (int n = 0; n < kSteps; ++n) all[n] = chunk(n);
#pragma unroll
      for (int n = 0; n < kSteps; ++n, to += step) *reinterpret_cast<uint4*>(to) = all[n];
      return;
    }
#pragma unroll 1
    for (int n = 0; n < kSteps; ++n)
      if (row(n) < at.rows && column(n) < p.dim_v)
        *reinterpret_cast<uint4*>(row_at(at, Role::out, row(n)) + column(n) * sizeof(T)) = chunk(n);
  }
  // Merges the running result and the sink.
  __device__ void merge_end(RowEnd& end, int row) const {
    const int h = head(at, at.first + row);
    if (p.has(Option::accumulate))
      end.merge_running(*a.row<float>(Role::lse, at.seq.q_batch, token(at, row), h));
    if (p.has(Option::sink)) end.merge_sink(*a.row<const float>(Role::sinks, 0, 0, h));
  }
  __device__ void write_lse(const RowEnd& end, int row) const {
    if (!a.given(Role::lse)) return;
    *a.row<float>(Role::lse, at.seq.q_batch, token(at, row), head(at, at.first + row)) = end.lse;
  }
  // Writes eight columns of a combined row; adds the old values if the run accumulates.
  __device__ void write(int row, int column, const float (&eight)[8], float before) const {
    if (p.dtype.out != DType::f32) {
      *reinterpret_cast<uint4*>(row_at(at, Role::out, row) + column * sizeof(T)) = {
          pack<T>(eight[0], eight[1]), pack<T>(eight[2], eight[3]), pack<T>(eight[4], eight[5]),
          pack<T>(eight[6], eight[7])};
      return;
    }
    float* to = reinterpret_cast<float*>(row_at(at, Role::out, row)) + column;
#pragma unroll
    for (int n = 0; n < 8; ++n) to[n] = eight[n] + (before == 0.f ? 0.f : to[n] * before);
  }

  __device__ int64_t row_index(int row) const {
    return (int64_t(at.b) * p.heads_q + head(at, at.first + row)) * p.len_q + position(at.first + row);
  }
  __device__ int64_t split_rows() const { return int64_t(p.batch) * p.heads_q * p.len_q; }

  // The last split to arrive combines all splits, in order.
  __device__ void combine_splits() const {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    uint32_t* counter = x.arrived + (int64_t(at.b) * x.packed_heads.by + at.packed_head) * x.row_blocks.by + at.block;
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) + 1 == x.splits.by;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    for (int first = warp * kRowsCombined; first < at.rows; first += kWarps * kRowsCombined) combine_rows(first);
  }
  // A warp combines as many rows at once as its lanes cover. It first writes the weights of all splits to its share of
  // the tile memory, then adds the splits with many loads in flight.
  static constexpr int kLanesOfRow = kDimV <= 64    ? 8
                                     : kDimV <= 128 ? 16
                                                    : 32,
                       kRowsCombined = 32 / kLanesOfRow, kSplitsAtOnce = 8;
  static_assert(kSharedBytes / kWarps >= kRowsCombined * kMostForwardSplits * 4);
  __device__ void combine_rows(int first) const {
    const int mine = lane % kLanesOfRow, column = mine * 8, row = min(first + lane / kLanesOfRow, at.rows - 1);
    const bool there = first + lane / kLanesOfRow < at.rows, inside = column < p.dim_v;
    const int splits = int(x.splits.by);
    const float* const lses = x.partial_lse + row_index(row);
    float* const weight = weights + (warp * kRowsCombined + lane / kLanesOfRow) * kMostForwardSplits;
    float top = -INFINITY, total = 0.f, acc[8] = {};
    for (int n = mine; n < splits; n += kLanesOfRow) {
      const float lse = __ldcg(lses + n * split_rows());
      weight[n] = lse, top = fmaxf(top, lse);
    }
#pragma unroll
    for (int n = 1; n < kLanesOfRow; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
    for (int n = mine; n < splits; n += kLanesOfRow)
      total += weight[n] = expf(weight[n] - (top == -INFINITY ? 0.f : top));
#pragma unroll
    for (int n = 1; n < kLanesOfRow; n *= 2) total += __shfl_xor_sync(~0u, total, n);
    const float once = total == 0.f ? 0.f : 1.f / total;
    for (int n = mine; n < splits; n += kLanesOfRow) weight[n] *= once;
    __syncwarp();
    const float* from = x.partial_out + row_index(row) * p.dim_v + (inside ? column : 0);
    for (int n = 0; n < splits; n += kSplitsAtOnce) {
      float4 low[kSplitsAtOnce], high[kSplitsAtOnce];
#pragma unroll
      for (int u = 0; u < kSplitsAtOnce; ++u) {
        const int64_t at_split = min(n + u, splits - 1) * split_rows();
        const float4* two = reinterpret_cast<const float4*>(from + at_split * p.dim_v);
        low[u] = __ldcg(two), high[u] = __ldcg(two + 1);
      }
#pragma unroll
      for (int u = 0; u < kSplitsAtOnce; ++u) {
        const float share = n + u < splits ? weight[n + u] : 0.f;
        if (share == 0.f) continue;  // empty split
        const float eight[8] = {low[u].x, low[u].y, low[u].z, low[u].w, high[u].x, high[u].y, high[u].z, high[u].w};
#pragma unroll
        for (int d = 0; d < 8; ++d) acc[d] = fmaf(eight[d], share, acc[d]);
      }
    }
    __syncwarp();
    RowEnd end(total == 0.f ? -INFINITY : top + logf(total));
    if (there && mine == 0) merge_end(end, row), write_lse(end, row);
    end.now = __shfl_sync(~0u, end.now, 0, kLanesOfRow), end.before = __shfl_sync(~0u, end.before, 0, kLanesOfRow);
#pragma unroll
    for (int d = 0; d < 8; ++d) acc[d] *= end.now;
    if (there && inside) write(row, column, acc, end.before);
  }
};

template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocksPerSm)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ ForwardPlace place;
  __shared__ int2 seen[F::kTileQ];
  F f(params, shared, place, seen);
  f.run();
}

}  // namespace attune::sm80
