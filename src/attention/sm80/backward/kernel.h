// SPDX-License-Identifier: Apache-2.0
// Gradients with mma.sync and cp.async, for every GPU from sm_80 on.
//   prepare: lse and delta of every row, dQ cleared -> keys: for each query tile: S^T, dP^T, P^T, dS^T; dV += P^T dO,
//   dK += dS^T Q, dQ += dS K -> finish: dQ to its dtype
// A CTA owns a key tile and walks the queries of all heads of the GQA group, so dK and dV stay in registers and are
// summed in f32 without atomics. Scores are transposed (rows are keys): P^T and dS^T leave the first two products as
// operands of the next two, and only dS goes through shared memory, for dQ.
//
// Where a warp's share of dK and dV would not fit in its registers, warps share keys, and P goes through shared memory
// too. With three buffers of Q and dO, half of the warps sum one tile while the others compute the scores of the next.
// With two, dQ of one tile runs beside the scores of the next. Either way, products of one warp cover exponentials and
// barriers of another. dQ is summed in global memory, in fragments; a deterministic run adds CTA after CTA, in ticket
// order.
#pragma once
#include <cstddef>

#include "attention/sm80/backward/options.h"
#include "attention/sm80/backward/list_walk.h"
#include "attention/sm80/large_logits.h"

namespace attune::sm80 {

template <class T, KeysConfig C>
struct BackwardKeys : KeyWalk<KeyShape<C>> {
  using Shape = KeyShape<C>;
  using Walk = KeyWalk<Shape>;
  using Walk::x, Walk::p, Walk::a, Walk::at, Walk::seen;
  static constexpr int kTileQ = Shape::kTileQ, kTileK = Shape::kTileK, kWarpsQ = Shape::kWarpsQ, kStep = Shape::kStepQ;
  static constexpr int kDim = C.dim;
  static constexpr bool kOptions = C.options;
  static constexpr int kBlocks = Shape::kBlocks;  // per SM
  static constexpr int kThreads = Shape::kThreads, kKeys = kTileK / Shape::kWarpsK, kM = kKeys / 16;
  static constexpr int kSumWarps = Shape::kWarps / Shape::kSumWarpsK;  // of dK and dV, over columns
  static constexpr int kSumKeys = kTileK / Shape::kSumWarpsK, kSumM = kSumKeys / 16;
  static constexpr int kSpan = kDim / kSumWarps, kSpanV = kDim / kSumWarps;  // columns of dK and dV per warp
  static constexpr int kDqRows = kTileQ / Shape::kDqWarpsQ, kDqSpan = kDim / (Shape::kWarps / Shape::kDqWarpsQ);
  static_assert(kKeys % 16 == 0 && kStep % 16 == 0 && kTileQ % (kStep * kWarpsQ) == 0 && kTileK % 16 == 0);
  static_assert(kSpan % 16 == 0 && kSpanV % 16 == 0 && kDqRows % 16 == 0 && kDqSpan % 16 == 0 && kSumKeys % 16 == 0);
  static constexpr bool kShareP = kWarpsQ > 1;
  static_assert(kShareP || kSumKeys == kKeys);
  static constexpr bool kOneBarrier = !kShareP && Shape::kStages == 2;
  static constexpr bool kPingPong = Shape::kPingPong;            // one barrier too
  static constexpr bool kLate = kShareP && Shape::kStages == 2;  // two barriers; dQ is computed beside the next scores
  using TileOfK = SharedTile<kTileK, kDim>;
  using TileOfV = SharedTile<kTileK, kDim>;
  using TileOfQ = SharedTile<kTileQ, kDim>;
  using TileOfO = SharedTile<kTileQ, kDim>;
  using TileOfS = SharedTile<kTileK, kTileQ>;                                 // dS^T, P^T: [key][query]
  static constexpr int kBuffers = kOneBarrier || kPingPong || kLate ? 2 : 1;  // of dS
  static constexpr int kBuffersP = kPingPong ? 2 : kShareP ? 1 : 0;
  struct Stage {
    char q[TileOfQ::kBytes], d_out[TileOfO::kBytes];
    float2 rows[kTileQ];  // log-sum-exp and delta
  };
  struct Shared {
    char k[TileOfK::kBytes], v[TileOfV::kBytes];
    char ds[kBuffers][TileOfS::kBytes], p[kBuffersP][TileOfS::kBytes];
    Stage stages[Shape::kStages];
  };
  static constexpr int kV = offsetof(Shared, v), kDs = offsetof(Shared, ds), kP = offsetof(Shared, p),
                       kStage0 = offsetof(Shared, stages), kSharedBytes = sizeof(Shared);
  static constexpr int kO = offsetof(Stage, d_out), kRows = offsetof(Stage, rows), kStageBytes = sizeof(Stage);

  int lane, warp;      // refreshed for every tile: opaque()
  char* const memory;  // Shared
  uint32_t shared;
  Accumulator dk[kSumM][kSpan / 8], dv[kSumM][kSpanV / 8];

  __device__ BackwardKeys(const BackwardParams& params, char* shared_memory, KeyPlace& place, int2* seen_by,
                          Entries* entries_of)
      : Walk{params, params.problem, params.args, place, seen_by, entries_of}, memory(shared_memory) {
    refresh();
  }
  __device__ void refresh() {
    const int thread = thread_index();
    __builtin_assume(thread >= 0 && thread < kThreads);
    lane = thread % 32, warp = thread / 32;
    shared = uint32_t(opaque(int(shared_address(memory))));
  }

  __device__ int warp_k() const { return warp % Shape::kWarpsK; }
  __device__ int warp_q() const { return warp / Shape::kWarpsK; }
  __device__ uint32_t ds_shared(int buffer) const { return shared + kDs + buffer * TileOfS::kBytes; }
  __device__ uint32_t p_shared(int buffer) const { return shared + kP + (kPingPong ? buffer * TileOfS::kBytes : 0); }
  __device__ uint32_t q_shared(int stage) const { return shared + kStage0 + stage * kStageBytes; }
  static __device__ const float2* two_of(const float4* rows) { return reinterpret_cast<const float2*>(rows); }
  __device__ const float4* rows_at(int stage) const {  // two rows each
    return reinterpret_cast<const float4*>(memory + kStage0 + stage * kStageBytes + kRows);
  }

  // Each thread copies one chunk of a panel in every kRound-th row, so its shared-memory addresses are one base plus
  // constants. Whole tiles take the fast path.
  template <class Layout, int kCount, int kWidth>
  __device__ void load_tile(uint32_t tile, const T* first, int64_t stride, int dim, int count) const {
    constexpr int kRound = kThreads / 8;
    static_assert(kRound % 8 == 0 && kCount % kRound == 0);
    const int thread = warp * 32 + lane, row = thread / 8, chunk = thread % 8;
    const uint32_t to = tile + Layout::offset(row, chunk * 8);
    const T* from = first + row * stride + chunk * 8;
    if (count >= kCount && dim == kWidth) {
#pragma unroll
      for (int n = 0; n < kCount / kRound; ++n, from += kRound * stride)
#pragma unroll
        for (int panel = 0; panel < Layout::kPanels; ++panel)
          if (panel * 64 + 64 <= kWidth || panel * 64 + chunk * 8 < kWidth)
            copy16(to + (panel * kCount + n * kRound) * 128, from + panel * 64);
    } else {
#pragma unroll 1
      for (int n = 0; n < kCount / kRound; ++n, from += kRound * stride)
#pragma unroll 1
        for (int panel = 0; panel < Layout::kPanels; ++panel) {
          const bool there = row + n * kRound < count && panel * 64 + chunk * 8 < dim;
          copy16(to + (panel * kCount + n * kRound) * 128, there ? from + panel * 64 : first, there);
        }
    }
  }
  template <class Layout, int kWidth>
  __device__ void load_keys(Role role, uint32_t tile, int dim) const {
    if (p.keys != KeySource::paged) {
      const LinearRows<const T> rows(p, a, role, at.seq, at.b, at.head_kv);
      return load_tile<Layout, kTileK, kWidth>(tile, rows.row(at.first), rows.stride, dim, at.count);
    }
    const PagedRows<const T> rows(p, a, role, at.seq, at.b, at.head_kv);
    const int chunk = thread_index() % 8;
#pragma unroll 1
    for (int r = thread_index() / 8; r < kTileK; r += kThreads / 8) {
      const T* from = rows.row(at.first + (r < at.count ? r : 0));
#pragma unroll 1
      for (int column = chunk * 8; column < Layout::kPanels * 64; column += 64) {
        const bool there = r < at.count && column < dim;
        copy16(tile + Layout::offset(r, column), there ? from + column : from, there);
      }
    }
  }
  template <class Layout, int kWidth>
  __device__ void load_queries(Role role, const char* query0, uint32_t tile, int dim, const Visit& t) const {
    const int64_t stride = a[role].stride.seq;
    const T* first = reinterpret_cast<const T*>(query0) + t.head * a[role].stride.head + t.first * stride;
    load_tile<Layout, kTileQ, kWidth>(tile, first, stride, dim, at.seq.len_q - t.first);
  }
  // Loads the n-th visit and finds the one after it.
  __device__ void load(int n, int stage) {
    refresh();
    const Visit t = at.visit[n % kVisits];
    load_queries<TileOfQ, kDim>(Role::q, at.q, q_shared(stage), p.dim_qk, t);
    load_queries<TileOfO, kDim>(Role::d_out, at.d_out, q_shared(stage) + kO, p.dim_v, t);
    const float2* rows = x.rows + at.row + int64_t(t.head) * x.padded + t.first;
    if (const int pair = warp * 32 + lane; pair < kTileQ / 2)
      copy16(q_shared(stage) + kRows + pair * 16, rows + pair * 2, t.first + pair * 2 < x.padded);
    close_group();
    if (thread_index() == 0) this->find_visit(n + 1);
  }

  // s = keys queries^T: the warp's keys times kStep query rows, starting at `first`.
  template <class Rows, class Columns, int kDepth>
  __device__ void product(Accumulator (&s)[kM][kStep / 8], uint32_t keys, uint32_t queries, int first) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) s[m][n] = {};
    const uint32_t row = keys + Rows::offset(warp_k() * kKeys + lane % 16, lane / 16 * 8);
    const uint32_t column = queries + Columns::offset(first + lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      FragmentA one[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) load_matrix4(one[m].r, Rows::further(row, k) + m * 16 * 128);
#pragma unroll
      for (int n = 0; n < kStep / 8; n += 2) {
        uint32_t two[4];
        load_matrix4(two, Columns::further(column, k) + n * 8 * 128);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<T>(s[m][n], one[m], {two[0], two[1]});
          multiply_add<T>(s[m][n + 1], one[m], {two[2], two[3]});
        }
      }
    }
  }

  // Computes P from S and dS from dP for one step, then packs both as operands: [m][n] holds rows lane / 4 and + 8.
  using Fragments = Accumulator[kM][kStep / 8];
  __device__ auto lse_of(const Visit& t, int first) const {
    return [this, &t, i = first + lane % 4 * 2](int row) { return this->lse(t, i + row); };
  }
  __device__ void hide(Fragments& s, const Visit& t, int first) const {
    const float hidden = copysignf(INFINITY, -x.scale);
    if (!kPingPong && at.large_logits) lower_large_logits(s, x.scale, lse_of(t, first));
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 by = seen[warp_k() * kKeys + m * 16 + half * 8 + lane / 4];
        const int start = t.first + first + lane % 4 * 2;
        const int from = max(by.x, t.from) - start, until = min(by.y, t.until) - start;
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (n * 8 + e < from || n * 8 + e >= until) s[m][n].c[2 * half + e] = hidden;
      }
  }
  __device__ void weigh(Fragments& s, const float4* rows) const {
    const float scale = x.scale * kLog2e;
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
      const float4 two = rows[n * 4 + lane % 4];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n].c[e] = exp2_fast(fmaf(s[m][n].c[e], scale, e % 2 ? -two.z : -two.x));
    }
  }
  __device__ void differ(Fragments& dp, const Fragments& weight, const float4* rows) const {
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
      const float4 two = rows[n * 4 + lane % 4];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          dp[m][n].c[e] = weight[m][n].c[e] * fmaf(dp[m][n].c[e], x.kept.in, e % 2 ? -two.w : -two.y);
    }
  }
  struct Pairs {
    const BackwardKeys& of;
    const Visit& t;
    const float4* rows;
    int query, key;  // position of element (0, 0, 0); key within its tile
    int last_i, last_j;
    __device__ int i(int, int n, int e) const { return query + n * 8 + e % 2; }
    __device__ int in_tile(int m, int e) const { return key + m * 16 + e / 2 * 8; }
    __device__ int j(int m, int, int e) const { return of.at.first + in_tile(m, e); }
    __device__ float2 row(int, int n, int e) const {
      const float4 two = rows[n * 4 + of.lane % 4];
      return e % 2 ? float2{two.z, two.w} : float2{two.x, two.y};
    }
    __device__ bool hidden(int m, int n, int e) const {
      const int2 by = of.seen[in_tile(m, e)];
      return i(m, n, e) < max(by.x, t.from) || i(m, n, e) >= min(by.y, t.until);
    }
  };
  __device__ void weigh_with_options(Fragments& s, Fragments& dp, int number, int first, const float4* rows) const {
    const Visit t = at.visit[number % kVisits];
    General score(p, a, at.seq, at.b, at.head_kv * at.group + t.head);
    if (score.block_bias) score.entry = this->entries->of_visit[number % kVisits];
    const Pairs pairs{*this, t, rows, t.first + first + lane % 4 * 2, warp_k() * kKeys + lane / 4,
                      at.seq.len_q - 1, at.seq.len_k - 1};
    float block = differentiate_pairs(pairs, a, score, x.kept, s, dp);
    if (!score.block_bias || !a.given(Role::d_bias)) return;
    for (int step = 16; step; step /= 2) block += __shfl_xor_sync(~0u, block, step);
    if (lane == 0) atomicAdd(static_cast<float*>(a[Role::d_bias].data) + score.entry, block);
  }

  using Packed = uint32_t[kM][kStep / 8][2];
  static __device__ void pack_fragments(Packed& to, const Fragments& from) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to[m][n][half] = pack<T>(from[m][n].c[2 * half], from[m][n].c[2 * half + 1]);
  }
  __device__ void put(uint32_t tile, const Packed& w, int first) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_shared(
              tile + TileOfS::offset(warp_k() * kKeys + m * 16 + half * 8 + lane / 4, first + n * 8) + lane % 4 * 4,
              w[m][n][half]);
  }

  // acc += weights queries: the warp's keys and columns, kDepth queries starting at `first`; `weight(k)` is an operand.
  template <class Layout, int kColumns, int kDepth, class Weight>
  __device__ void accumulate(Accumulator (&acc)[kSumM][kColumns / 8], uint32_t queries, int first,
                             Weight weight) const {
    const Chunks<Layout, kColumns> chunk(queries, first + lane % 16,
                                         warp / Shape::kSumWarpsK * kColumns + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      FragmentA one[kSumM];
#pragma unroll
      for (int m = 0; m < kSumM; ++m) weight(one[m], m, k);
#pragma unroll
      for (int d = 0; d < kColumns / 8; d += 2) {
        uint32_t two[4];
        load_matrix4_transposed(two, chunk[d * 8] + k * 128);
#pragma unroll
        for (int m = 0; m < kSumM; ++m) {
          multiply_add<T>(acc[m][d], one[m], {two[0], two[1]});
          multiply_add<T>(acc[m][d + 1], one[m], {two[2], two[3]});
        }
      }
    }
  }
  static __device__ void operand(FragmentA& f, const uint32_t (&w)[kStep / 8][2], int k) {
    f = {{w[k / 8][0], w[k / 8][1], w[k / 8 + 1][0], w[k / 8 + 1][1]}};
  }

  // dQ += dS K for the rows of the tile, into global memory. Deterministic runs wait for this CTA's ticket.
  static constexpr int kDqM = kDqRows / 16;
  template <int kDepth>
  __device__ void multiply_dq(Accumulator (&dq)[kDqM][kDqSpan / 8], uint32_t ds, int first) const {
    const int row_warp = warp % Shape::kDqWarpsQ, column = warp / Shape::kDqWarpsQ * kDqSpan;
    const Chunks<TileOfS, kDqRows> row(ds, lane % 8 + lane / 16 * 8, row_warp * kDqRows + lane / 8 % 2 * 8);
    const Chunks<TileOfK, kDqSpan> chunk(shared, lane % 16, column + lane / 16 * 8);
#pragma unroll kLate ? 2 : 8
    for (int k = 0; k < kDepth; k += 16) {
      FragmentA one[kDqM];
#pragma unroll
      for (int m = 0; m < kDqM; ++m) load_matrix4_transposed(one[m].r, row[m * 16] + (first + k) * 128);
#pragma unroll
      for (int d = 0; d < kDqSpan / 8; d += 2) {
        uint32_t two[4];
        load_matrix4_transposed(two, chunk[d * 8] + (first + k) * 128);
#pragma unroll
        for (int m = 0; m < kDqM; ++m) {
          multiply_add<T>(dq[m][d], one[m], {two[0], two[1]});
          multiply_add<T>(dq[m][d + 1], one[m], {two[2], two[3]});
        }
      }
    }
  }
  __device__ void add_dq(int n, uint32_t ds) const {
    int done = x.tickets ? load_count(this->ticket(n)) : 0;
    Accumulator dq[kDqM][kDqSpan / 8] = {};
    multiply_dq<kTileK>(dq, ds, 0);
    if (x.tickets)
      while (done < at.before[n % kVisits]) done = load_count(this->ticket(n));
    const Visit t = at.visit[n % kVisits];
    const int row_warp = warp % Shape::kDqWarpsQ, column = warp / Shape::kDqWarpsQ * kDqSpan;
    const int row = t.first + row_warp * kDqRows;
    float* to = x.dq + (at.row + int64_t(t.head) * x.padded + row) * kDim + column / 8 * kFragment;
#pragma unroll
    for (int m = 0; m < kDqM; ++m) {
      if (row + m * 16 >= at.seq.len_q) continue;
#pragma unroll
      for (int d = 0; d < kDqSpan / 8; ++d) add_fragment(to + m * 16 * kDim + d * kFragment, lane, dq[m][d]);
    }
  }

  // Computes dS from S into a buffer; also dV and dK, if P is not shared.
  __device__ void first_half(int n, int stage, int buffer) {
    refresh();
#pragma unroll 1
    for (int first = warp_q() * kStep; first < kTileQ; first += kStep * kWarpsQ) {
      const bool partial = at.visit[n % kVisits].partial, large_logits = kPingPong && at.large_logits;
      Fragments s, dp;
      product<TileOfK, TileOfQ, kDim>(s, shared, q_shared(stage), first);
      product<TileOfV, TileOfO, kDim>(dp, shared + kV, q_shared(stage) + kO, first);
      refresh();
      stage = opaque(stage);
      const float4* rows = rows_at(stage) + first / 2;
      if constexpr (kOptions) {
        weigh_with_options(s, dp, n, first, rows);
      } else {
        if (partial) hide(s, at.visit[n % kVisits], first);
        if (large_logits) {
          differentiate_large_logits(s, dp, two_of(rows), lane, x.scale * kLog2e, x.kept.in,
                                     lse_of(at.visit[n % kVisits], first));
        } else {
          weigh(s, rows);
          differ(dp, s, rows);
        }
      }
      Packed weight, ds;
      pack_fragments(weight, s);
      pack_fragments(ds, dp);
      refresh();
      stage = opaque(stage);
      put(ds_shared(buffer), ds, first);
      if constexpr (kShareP) {
        put(p_shared(buffer), weight, first);
      } else {
        accumulate<TileOfO, kSpanV, kStep>(dv, q_shared(stage) + kO, first,
                                           [&](FragmentA& f, int m, int k) { operand(f, weight[m], k); });
        accumulate<TileOfQ, kSpan, kStep>(dk, q_shared(stage), first,
                                          [&](FragmentA& f, int m, int k) { operand(f, ds[m], k); });
      }
    }
  }

  // dV and dK, if P is shared.
  __device__ void sum(int n, int stage, int buffer) {
    refresh();
    const uint32_t row = TileOfS::offset(warp % Shape::kSumWarpsK * kSumKeys + lane % 16, lane / 16 * 8);
    accumulate<TileOfO, kSpanV, kTileQ>(dv, q_shared(stage) + kO, 0, [&](FragmentA& f, int m, int k) {
      load_matrix4(f.r, TileOfS::further(p_shared(buffer) + row, k) + m * 16 * 128);
    });
    refresh();
    accumulate<TileOfQ, kSpan, kTileQ>(dk, q_shared(stage), 0, [&](FragmentA& f, int m, int k) {
      load_matrix4(f.r, TileOfS::further(ds_shared(buffer) + row, k) + m * 16 * 128);
    });
  }
  __device__ void second_half(int n, int stage, int buffer) {
    if constexpr (kShareP) sum(n, stage, buffer);
    refresh();
    if (x.dq) add_dq(n, ds_shared(buffer));
  }

  // Advances the ticket once all warps have added the n-th visit.
  __device__ void pass_ticket(int n) const {
    if (x.tickets && thread_index() == 0) add_count(this->ticket(n));
  }

  __device__ void run() {
    load_keys<TileOfK, kDim>(Role::k, shared, p.dim_qk);
    load_keys<TileOfV, kDim>(Role::v, shared + kV, p.dim_v);
    close_group();
    wait_for_previous();  // the code below reads the results of prepare
#pragma unroll
    for (int m = 0; m < kSumM; ++m) {
#pragma unroll
      for (int d = 0; d < kSpan / 8; ++d) dk[m][d] = {};
#pragma unroll
      for (int d = 0; d < kSpanV / 8; ++d) dv[m][d] = {};
    }
    do {
      const int visits = p.mask.blocks.q ? this->find_hits() : this->tiles() * at.group;
      if (visits <= 0) continue;
      if (thread_index() == 0) this->begin(visits);
      this->find_seen();
      __syncthreads();
      load(0, 0);
      __syncthreads();
      if ((kOneBarrier || kPingPong) && at.visits > 1) load(1, 1), wait_groups<1>();
      else wait_groups<0>();
      __syncthreads();
      if constexpr (kPingPong) run_ping_pong();
      else if constexpr (kLate) run_late();
      else run_visits();
      __syncthreads();
      if (kOneBarrier || kPingPong) pass_ticket(at.visits - 1);
    } while (p.mask.blocks.q && this->next_round());
    wait_groups<0>();
    __syncthreads();
    refresh();
    store();
  }

  __device__ void run_visits() {
    for (int n = 0; n < at.visits; ++n) {
      const int stage = kOneBarrier ? n % 2 : 0, buffer = stage;
      first_half(n, stage, buffer);
      if (kOneBarrier) wait_groups<0>();
      __syncthreads();
      if (kOneBarrier && n) pass_ticket(n - 1);
      if (kOneBarrier && n + 2 < at.visits) load(n + 2, stage);
      second_half(n, stage, buffer);
      if (kOneBarrier) continue;
      __syncthreads();
      if (n + 1 < at.visits) load(n + 1, 0);
      wait_groups<0>();
      __syncthreads();
      pass_ticket(n);
    }
  }

  // Warps w and w + 4 share a scheduler: one computes dQ of the previous tile while the other computes scores.
  __device__ void run_late() {
    for (int n = 0; n <= at.visits; ++n) {
      if (n + 1 < at.visits) load(n + 1, (n + 1) % 2);
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        refresh();
        if (warp / Shape::kWarpsOfHalf != half) {
          if (n < at.visits) first_half(n, n % 2, n % 2);
        } else if (n && x.dq) {
          add_dq(n - 1, ds_shared((n - 1) % 2));
        }
      }
      __syncthreads();
      if (n) pass_ticket(n - 1);
      if (n == at.visits) break;
      sum(n, n % 2, n % 2);
      wait_groups<0>();
      __syncthreads();
    }
  }

  // Ping-pong between two barriers: the sums of one tile and the scores of the next, in opposite orders.
  __device__ void run_ping_pong() {
    first_half(0, 0, 0);
    for (uint32_t n = 0; n < uint32_t(at.visits); ++n) {
      wait_groups<0>();
      __syncthreads();
      if (n) pass_ticket(n - 1);
      if (n + 2 < uint32_t(at.visits)) load(n + 2, (n + 2) % 3);
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        if (warp / Shape::kWarpsOfHalf == half) second_half(n, n % 3, n % 2);
        else if (n + 1 < uint32_t(at.visits)) first_half(n + 1, (n + 1) % 3, (n + 1) % 2);
      }
    }
  }

  // Gradients leave through the shared memory of K and V: packed, each in its own tile; or one after the other as f32,
  // if they are stored as f32 or added to existing values. Per-row work is a loop instead of being unrolled per
  // accumulator: a CTA runs it once and waits for every instruction fetch.
  __device__ void store() const {
    if (p.dtype.grad == DType::f32 || x.shared_keys) {
      store_f32(Role::dk, dk, p.dim_qk, x.scale * x.kept.out);
      store_f32(Role::dv, dv, p.dim_v, 1.f);
      return;
    }
    put_gradient<TileOfK>(shared, dk, x.scale * x.kept.out);
    put_gradient<TileOfV>(shared + kV, dv, 1.f);
    __syncthreads();
    copy_gradient<TileOfK>(Role::dk, shared, p.dim_qk);
    copy_gradient<TileOfV>(Role::dv, shared + kV, p.dim_v);
  }
  __device__ int first_key() const { return warp % Shape::kSumWarpsK * kSumKeys + lane / 4; }
  __device__ int column_group() const { return warp / Shape::kSumWarpsK; }
  template <class Layout, int kColumns>
  __device__ void put_gradient(uint32_t tile, const Accumulator (&acc)[kSumM][kColumns], float factor) const {
#pragma unroll
    for (int m = 0; m < kSumM; ++m)
#pragma unroll
      for (int d = 0; d < kColumns; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_shared(tile + lane % 4 * 4 +
                           Layout::offset(first_key() + m * 16 + half * 8, (column_group() * kColumns + d) * 8),
                       pack<T>(acc[m][d].c[2 * half] * factor, acc[m][d].c[2 * half + 1] * factor));
  }
  template <class Layout>
  __device__ void copy_gradient(Role role, uint32_t tile, int dim) const {
    if (!a.given(role)) return;
    constexpr int kChunks = Layout::kPanels * 8;
    T* const row0 = LinearRows<T>(p, a, role, at.seq, at.b, at.head_kv).row(at.first);
    const int64_t stride = a[role].stride.seq;
#pragma unroll 4
    for (int n = thread_index(); n < at.count * kChunks; n += kThreads) {
      const int key = n / kChunks, column = n % kChunks * 8;
      if (column < dim)
        *reinterpret_cast<uint4*>(row0 + key * stride + column) = load_shared16(tile + Layout::offset(key, column));
    }
  }
  template <int kColumns>
  __device__ void store_f32(Role role, const Accumulator (&acc)[kSumM][kColumns], int dim, float factor) const {
    if (!a.given(role)) return;
    float* const sums = reinterpret_cast<float*>(memory);  // [kTileK][kDim]
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kSumM; ++m)
#pragma unroll
      for (int d = 0; d < kColumns; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[(first_key() + m * 16 + e / 2 * 8) * kDim + (column_group() * kColumns + d) * 8 + lane % 4 * 2 + e % 2] =
              acc[m][d].c[e] * factor;
    __syncthreads();
    if (!x.shared_keys)
      return store_sums<kDim, kThreads>(sums, LinearRows<float>(p, a, role, at.seq, at.b, at.head_kv).row(at.first),
                                       a[role].stride.seq, at.count, dim, x.running);
    const auto row_of = [&]<class G>(int key, G*) {
      return p.keys == KeySource::paged ? PagedRows<G>(p, a, role, at.seq, at.b, at.head_kv).row(at.first + key)
                                        : LinearRows<G>(p, a, role, at.seq, at.b, at.head_kv).row(at.first + key);
    };
#pragma unroll 1
    for (int n = thread_index(); n < at.count * (kDim / 2); n += kThreads) {
      const int key = n / (kDim / 2), column = n % (kDim / 2) * 2;
      const float low = sums[key * kDim + column], high = sums[key * kDim + column + 1];
      if (column >= dim) continue;
      if (p.dtype.grad != DType::f32) add_pair(row_of(key, static_cast<T*>(nullptr)) + column, low, high);
      else if (float* to = row_of(key, static_cast<float*>(nullptr)) + column)
        atomicAdd(to, low), atomicAdd(to + 1, high);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kBlocks)
    backward_keys_kernel(const __grid_constant__ BackwardParams params) {
  if constexpr (compiled(K::Shape::kSharedMemory)) {
    extern __shared__ __align__(128) char shared[];
    __shared__ KeyPlace place;
    __shared__ int2 seen[K::kTileK];
    Entries* entries_of = nullptr;
    if constexpr (K::kOptions) {
      __shared__ Entries entries;
      entries_of = &entries;
    }
    K keys(params, shared, place, seen, entries_of);
    admit_next();
    if (params.order.place || params.tickets || params.disjoint) wait_for_previous();  // prepare computes places
    if (threadIdx.x == 0) keys.find_place();
    __syncthreads();
    if (place.count > 0) keys.run();
    else wait_for_previous();
  }
}

}  // namespace attune::sm80
