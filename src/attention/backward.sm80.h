// Gradients with mma.sync and cp.async: the kernels. Built for every GPU from sm_80 on.
//   prepare: lse and delta of every row, dQ cleared -> keys: for each query tile: S^T, dP^T, P^T, dS^T; dV += P^T dO,
//   dK += dS^T Q, dQ += dS K -> finish: dQ to its dtype
// A block owns a key tile and walks the queries of all heads that share the keys: dK and dV stay in registers and are
// summed in f32 without atomics. Scores are transposed, rows are keys: so P^T and dS^T come out of the first two
// products in the form in which the next two take them, and only dS goes through shared memory, for dQ. With two
// buffers for it and two for Q and dO a tile costs one barrier. Where a warp's share of dK and dV would not fit in its
// registers, warps that share keys split the queries of S and the columns of dK and dV; then P goes through shared
// memory too, and a tile costs two. dQ is added up in global memory, in fragments. A reproducible run leaves dQ to
// backward.sm80.rows.h: seven products instead of five, and always the same order.
#pragma once
#include "attention/backward.sm80.ends.h"

namespace attune::sm80 {

// Addresses of 16-byte chunks of one row, from a warp's first column on, at multiples of 16. `kSpan`: how far.
template <class Layout, int kSpan>
struct Chunks {
  uint32_t tile, first;
  int row, column;
  __device__ Chunks(uint32_t tile_address, int at_row, int at_column)
      : tile(tile_address), first(tile_address + Layout::offset(at_row, at_column)), row(at_row), column(at_column) {}
  __device__ uint32_t operator[](int further) const {
    if constexpr ((kSpan & (kSpan - 1)) == 0) return Layout::further(first, further);
    else return tile + Layout::offset(row, column + further);
  }
};

// How a block's work is laid out over its warps.
template <int tile_q, int tile_k, int warps_k, int warps_q, int step_q, int dq_warps_q, int stages, int blocks>
struct KeyShape {
  static constexpr int kTileQ = tile_q, kTileK = tile_k;
  static constexpr int kWarpsK = warps_k, kWarpsQ = warps_q;  // of S: over keys, over queries (then: columns of dK, dV)
  static constexpr int kStepQ = step_q;                       // queries that a warp has in registers at once
  static constexpr int kDqWarpsQ = dq_warps_q;                // of dQ: over queries; the others over columns
  static constexpr int kStages = stages;                      // of Q and dO
  static constexpr int kBlocks = blocks;                      // on a multiprocessor
  static constexpr int kWarps = warps_k * warps_q, kThreads = kWarps * 32;
};

struct KeyPlace {
  Sequence seq;
  int b, head_kv;
  int first, count;           // keys
  const char *q, *d_out;      // query 0 of the first head that shares them
  const float2* rows;
  int low, high;              // the queries that see one of them
  int open_first, open_last;  // the queries that see all of them; empty where the tile is not whole
  int visits;                 // of this round
  int head, block;            // of a list: which head of the group and which query blocks this round has
  int hit[256], of_warp[8];   // those of them that list this key block
};

struct Visit {
  int head, first, from, until;
};  // a query tile of a head of the group; only rows in [from, until) count

template <class T, int Dim, int DimV, class Shape, bool WithOptions>
struct BackwardKeys {
  static constexpr int kTileQ = Shape::kTileQ, kTileK = Shape::kTileK, kWarpsQ = Shape::kWarpsQ, kStep = Shape::kStepQ;
  static constexpr int kThreads = Shape::kThreads, kKeys = kTileK / Shape::kWarpsK, kM = kKeys / 16;
  static constexpr int kSpan = Dim / kWarpsQ, kSpanV = DimV / kWarpsQ;  // columns of dK and dV that a warp has
  static constexpr int kDqRows = kTileQ / Shape::kDqWarpsQ, kDqSpan = Dim / (Shape::kWarps / Shape::kDqWarpsQ);
  static_assert(kKeys % 16 == 0 && kStep % 16 == 0 && kTileQ % (kStep * kWarpsQ) == 0 && kTileK % 16 == 0);
  static_assert(kSpan % 16 == 0 && kSpanV % 16 == 0 && kDqRows % 16 == 0 && kDqSpan % 16 == 0);
  using TileOfK = SharedTile<kTileK, Dim>;
  using TileOfV = SharedTile<kTileK, DimV>;
  using TileOfQ = SharedTile<kTileQ, Dim>;
  using TileOfO = SharedTile<kTileQ, DimV>;
  using TileOfS = SharedTile<kTileK, kTileQ>;  // dS^T, P^T: [key][query]
  static constexpr bool kOneBarrier = kWarpsQ == 1 && Shape::kStages == 2;
  static constexpr int kDsBuffers = kOneBarrier || kWarpsQ > 1 ? 2 : 1;  // the second is P's where P is shared
  static constexpr int kRowBytes = kTileQ * 8;
  static constexpr int kStageBytes = TileOfQ::kBytes + TileOfO::kBytes + kRowBytes;
  static constexpr int kSharedBytes =
      TileOfK::kBytes + TileOfV::kBytes + TileOfS::kBytes * kDsBuffers + Shape::kStages * kStageBytes;

  const BackwardParams& x;
  const Problem& p;
  const DenseArgs& a;
  int lane, warp;       // refreshed for every tile: opaque()
  char* const memory;   // K, V, dS^T, P^T where there is one, then the stages: Q, dO, rows
  uint32_t shared;
  KeyPlace& at;
  int2* const seen;  // [kTileK]: the queries that see each key
  Accumulator dk[kM][kSpan / 8], dv[kM][kSpanV / 8];

  __device__ BackwardKeys(const BackwardParams& params, char* shared_memory, KeyPlace& place, int2* seen_by)
      : x(params), p(params.problem), a(params.args), memory(shared_memory), at(place), seen(seen_by) {
    refresh();
  }
  __device__ void refresh() {
    lane = opaque(threadIdx.x % 32), warp = opaque(threadIdx.x / 32);
    __builtin_assume(lane >= 0 && lane < 32 && warp >= 0 && warp < Shape::kWarps);
    shared = uint32_t(opaque(int(shared_address(memory))));
  }

  __device__ int warp_k() const { return warp % Shape::kWarpsK; }
  __device__ int warp_q() const { return warp / Shape::kWarpsK; }
  static constexpr int kV = TileOfK::kBytes, kDs = kV + TileOfV::kBytes, kP = kDs + TileOfS::kBytes;
  static constexpr int kStage0 = kDs + TileOfS::kBytes * kDsBuffers, kO = TileOfQ::kBytes,
                       kRows = kO + TileOfO::kBytes;
  __device__ uint32_t q_shared(int stage) const { return shared + kStage0 + stage * kStageBytes; }
  __device__ uint32_t do_shared(int stage) const { return q_shared(stage) + kO; }
  __device__ const float4* rows_at(int stage) const {  // two rows each
    return reinterpret_cast<const float4*>(memory + kStage0 + stage * kStageBytes + kRows);
  }
  __device__ int group() const { return p.heads_q / p.heads_kv; }
  __device__ QueryWalk walk() const { return {at.seq.band, at.seq.len_q, 1}; }

  // By one thread.
  __device__ void find_place() {
    uint32_t n = blockIdx.x;
    const int tile = int(n % x.tiles);  // causal: the longest first
    n /= x.tiles;
    at.head_kv = int(n % p.heads_kv), at.b = x.first_batch + int(n / p.heads_kv);
    at.seq = sequence_of(x, at.b);
    at.q = row_address(a[Role::q], at.seq.q_batch, at.seq.q_first, at.head_kv * group());
    at.d_out = row_address(a[Role::d_out], at.seq.q_batch, at.seq.q_first, at.head_kv * group());
    at.rows = x.rows + (int64_t(at.b) * p.heads_q + at.head_kv * group()) * x.padded;
    const Blocks size = p.mask.blocks;
    int64_t first = int64_t(tile) * kTileK, last = first + kTileK;
    if (size.k) {  // a tile lies in one key block
      const int pieces = (size.k + kTileK - 1) / kTileK;
      const int64_t start = int64_t(tile / pieces) * size.k;
      first = start + tile % pieces * kTileK, last = min(first + kTileK, start + size.k);
    }
    at.first = clamp(first, 0, at.seq.len_k), at.count = clamp(last, 0, at.seq.len_k) - at.first;
    if (at.count <= 0) return;
    const int end = at.first + at.count - 1;
    at.low = walk().first_query(at.first), at.high = walk().last_query(end);
    at.head = 0, at.block = size.q ? at.low / size.q : 0;
    at.open_first = walk().first_query(end), at.open_last = at.count == kTileK ? walk().last_query(at.first) : 0;
  }

  __device__ void find_seen() const {
    for (int n = threadIdx.x; n < kTileK; n += kThreads)
      seen[n] =
          n < at.count ? int2{walk().first_query(at.first + n), walk().last_query(at.first + n)} : int2{INT32_MAX, 0};
  }

  // Each thread has the same column of every kRound-th row, where that comes out even.
  template <class Layout, int kCount, class Row>
  __device__ void load_tile(uint32_t tile, int dim, int count, Row row_at) const {
    constexpr int kChunks = Layout::kPanels * 8, kRound = kThreads / kChunks;
    const auto one = [&](int row, int column) {
      const bool there = row < count && column < dim;
      copy16(tile + Layout::offset(row, column), row_at(there ? row : 0) + (there ? column : 0), there);
    };
    if constexpr (kThreads % kChunks == 0 && kCount % kRound == 0) {
#pragma unroll
      for (int n = 0; n < kCount / kRound; ++n) one(threadIdx.x / kChunks + n * kRound, threadIdx.x % kChunks * 8);
    } else {
      for (int n = threadIdx.x; n < kCount * kChunks; n += kThreads) one(n / kChunks, n % kChunks * 8);
    }
  }
  template <class Layout>
  __device__ void load_keys(Role role, uint32_t tile, int dim) const {
    if (p.keys == KeySource::paged) {
      const PagedRows<const T> rows(p, a, role, at.seq, at.b, at.head_kv);
      load_tile<Layout, kTileK>(tile, dim, at.count, [&](int row) { return rows.row(at.first + row); });
    } else {
      const int64_t stride = a[role].stride.seq;
      const T* first = LinearRows<const T>(p, a, role, at.seq, at.b, at.head_kv).row(at.first);
      load_tile<Layout, kTileK>(tile, dim, at.count, [&](int row) { return first + row * stride; });
    }
  }
  template <class Layout>
  __device__ void load_queries(Role role, const char* query0, uint32_t tile, int dim, const Visit& t) const {
    const int64_t stride = a[role].stride.seq;
    const T* first = reinterpret_cast<const T*>(query0) + t.head * a[role].stride.head + t.first * stride;
    load_tile<Layout, kTileQ>(tile, dim, at.seq.len_q - t.first, [&](int row) { return first + row * stride; });
  }
  __device__ void load(const Visit& t, int stage) const {
    load_queries<TileOfQ>(Role::q, at.q, q_shared(stage), p.dim_qk, t);
    load_queries<TileOfO>(Role::d_out, at.d_out, do_shared(stage), p.dim_v, t);
    const float2* rows = at.rows + int64_t(t.head) * x.padded + t.first;
    if (threadIdx.x < kTileQ / 2)
      copy16(q_shared(stage) + kRows + threadIdx.x * 16, rows + threadIdx.x * 2,
             t.first + int(threadIdx.x) * 2 < x.padded);
    close_group();
  }

  // s = keys queries^T: the warp's keys against kStep rows from `first` on.
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

  // P and dS of a step, as operands: [m][n] has rows lane / 4 and lane / 4 + 8.
  struct Weights { uint32_t p[kM][kStep / 8][2], ds[kM][kStep / 8][2]; };
  __device__ void weigh(Weights& w, Accumulator (&s)[kM][kStep / 8], const Accumulator (&dp)[kM][kStep / 8],
                        const Visit& t, int first, int stage) const {
    const bool partial = t.first < max(t.from, at.open_first) || t.first + kTileQ > min(t.until, at.open_last);
    const float scale = scale_of(p, a) * (WithOptions ? 1.f : kLog2e);
    if (!WithOptions && partial) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int2 by = seen[warp_k() * kKeys + m * 16 + half * 8 + lane / 4];
          const int from = max(by.x, t.from), until = min(by.y, t.until);
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int i = t.first + first + n * 8 + lane % 4 * 2 + e;
              if (i < from || i >= until) s[m][n].c[2 * half + e] = copysignf(INFINITY, -scale);
            }
        }
    }
    if constexpr (WithOptions) {
      const General score(p, a, at.seq, at.b, at.head_kv * group() + t.head);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = warp_k() * kKeys + m * 16 + half * 8 + lane / 4;
          const int from = max(seen[key].x, t.from), until = min(seen[key].y, t.until);
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
            const float4 two = rows_at(stage)[(first + n * 8) / 2 + lane % 4];
            Pair pair[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int i = t.first + first + n * 8 + lane % 4 * 2 + e;
              pair[e] = differentiate<true>(a, &score, scale, s[m][n].c[2 * half + e], dp[m][n].c[2 * half + e],
                                            e ? float2{two.z, two.w} : float2{two.x, two.y}, i, at.first + key,
                                            i < from || i >= until);
            }
            w.p[m][n][half] = pack<T>(pair[0].p, pair[1].p), w.ds[m][n][half] = pack<T>(pair[0].ds, pair[1].ds);
          }
        }
    } else {
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        const float4 two = rows_at(stage)[(first + n * 8) / 2 + lane % 4];
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const Pair one = differentiate<false>(a, nullptr, scale, s[m][n].c[2 * half], dp[m][n].c[2 * half],
                                                  {two.x, two.y}, 0, 0, false);
            const Pair other = differentiate<false>(a, nullptr, scale, s[m][n].c[2 * half + 1],
                                                    dp[m][n].c[2 * half + 1], {two.z, two.w}, 0, 0, false);
            w.p[m][n][half] = pack<T>(one.p, other.p), w.ds[m][n][half] = pack<T>(one.ds, other.ds);
          }
      }
    }
  }

  __device__ void put(uint32_t tile, const uint32_t (&w)[kM][kStep / 8][2], int first) const {
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

  // acc += weights queries: the warp's keys, its columns, kDepth queries from `first` on; `weight(k)` is an operand.
  template <class Layout, int kColumns, int kDepth, class Weight>
  __device__ void accumulate(Accumulator (&acc)[kM][kColumns / 8], uint32_t queries, int first, Weight weight) const {
    const Chunks<Layout, kColumns> chunk(queries, first + lane % 16, warp_q() * kColumns + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      FragmentA one[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) weight(one[m], m, k);
#pragma unroll
      for (int d = 0; d < kColumns / 8; d += 2) {
        uint32_t two[4];
        load_matrix4_transposed(two, chunk[d * 8] + k * 128);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<T>(acc[m][d], one[m], {two[0], two[1]});
          multiply_add<T>(acc[m][d + 1], one[m], {two[2], two[3]});
        }
      }
    }
  }
  static __device__ void operand(FragmentA& f, const uint32_t (&w)[kStep / 8][2], int k) {
    f = {{w[k / 8][0], w[k / 8][1], w[k / 8 + 1][0], w[k / 8 + 1][1]}};
  }

  // dQ += dS K, of the tile's rows; into global memory.
  __device__ void add_dq(const Visit& t, int ds) const {
    constexpr int kRowParts = kDqRows / 16;
    const int part = warp % Shape::kDqWarpsQ, column = warp / Shape::kDqWarpsQ * kDqSpan;
    Accumulator dq[kRowParts][kDqSpan / 8] = {};
    const Chunks<TileOfS, kDqRows> row(shared + kDs + ds * TileOfS::kBytes, lane % 8 + lane / 16 * 8,
                                       part * kDqRows + lane / 8 % 2 * 8);
    const Chunks<TileOfK, kDqSpan> chunk(shared, lane % 16, column + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      FragmentA one[kRowParts];
#pragma unroll
      for (int m = 0; m < kRowParts; ++m) load_matrix4_transposed(one[m].r, row[m * 16] + k * 128);
#pragma unroll
      for (int d = 0; d < kDqSpan / 8; d += 2) {
        uint32_t two[4];
        load_matrix4_transposed(two, chunk[d * 8] + k * 128);
#pragma unroll
        for (int m = 0; m < kRowParts; ++m) {
          multiply_add<T>(dq[m][d], one[m], {two[0], two[1]});
          multiply_add<T>(dq[m][d + 1], one[m], {two[2], two[3]});
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowParts; ++m) {
      const int first = t.first + part * kDqRows + m * 16;
      if (first >= at.seq.len_q) continue;
      float* to = x.dq + ((int64_t(at.b) * p.heads_q + at.head_kv * group() + t.head) * x.padded + first) * Dim +
                  column / 8 * kFragment;
#pragma unroll
      for (int d = 0; d < kDqSpan / 8; ++d) add_fragment(to + d * kFragment, lane, dq[m][d]);
    }
  }

  // S to dS, in the `ds`-th buffer; and dV and dK, where P is not shared.
  __device__ void first_half(const Visit& t, int stage, int ds) {
#pragma unroll 1
    for (int first = warp_q() * kStep; first < kTileQ; first += kStep * kWarpsQ) {
      Accumulator s[kM][kStep / 8], dp[kM][kStep / 8];
      product<TileOfK, TileOfQ, Dim>(s, shared, q_shared(stage), first);
      product<TileOfV, TileOfO, DimV>(dp, shared + kV, do_shared(stage), first);
      refresh();
      Weights w;
      weigh(w, s, dp, t, first, stage);
      refresh();
      put(shared + kDs + ds * TileOfS::kBytes, w.ds, first);
      if constexpr (kWarpsQ > 1) put(shared + kP, w.p, first);
      if constexpr (kWarpsQ == 1) {
        accumulate<TileOfO, kSpanV, kStep>(dv, do_shared(stage), first,
                                           [&](FragmentA& f, int m, int k) { operand(f, w.p[m], k); });
        accumulate<TileOfQ, kSpan, kStep>(dk, q_shared(stage), first,
                                          [&](FragmentA& f, int m, int k) { operand(f, w.ds[m], k); });
      }
    }
  }

  __device__ void second_half(const Visit& t, int stage, int ds) {
    refresh();
    if constexpr (kWarpsQ > 1) {
      const uint32_t row = TileOfS::offset(warp_k() * kKeys + lane % 16, lane / 16 * 8);
      accumulate<TileOfO, kSpanV, kTileQ>(dv, do_shared(stage), 0, [&](FragmentA& f, int m, int k) {
        load_matrix4(f.r, TileOfS::further(shared + kP + row, k) + m * 16 * 128);
      });
      accumulate<TileOfQ, kSpan, kTileQ>(dk, q_shared(stage), 0, [&](FragmentA& f, int m, int k) {
        load_matrix4(f.r, TileOfS::further(shared + kDs + row, k) + m * 16 * 128);
      });
    }
    refresh();
    if (x.dq) add_dq(t, ds);
  }

  __device__ void run() {
    load_keys<TileOfK>(Role::k, shared, p.dim_qk);
    load_keys<TileOfV>(Role::v, shared + kV, p.dim_v);
    close_group();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int d = 0; d < kSpan / 8; ++d) dk[m][d] = {};
#pragma unroll
      for (int d = 0; d < kSpanV / 8; ++d) dv[m][d] = {};
    }
    // Without a list all visits are one round; with one, a round has a head and as many query blocks as threads.
    do {
      const int count = p.mask.blocks.q ? find_hits() : tiles() * group();
      at.visits = count;  // by every thread, the same
      if (count > 0) run_visits();
    } while (p.mask.blocks.q && next_round());
    wait_groups<0>();
    __syncthreads();
    store<TileOfK>(Role::dk, dk, shared, p.dim_qk, scale_of(p, a));
    store<TileOfV>(Role::dv, dv, shared + kV, p.dim_v, 1.f);
  }

  __device__ void run_visits() {
    load(visit(0), 0);
    if (kOneBarrier && at.visits > 1) load(visit(1), 1);
    find_seen();
    if (kOneBarrier && at.visits > 1) wait_groups<1>();
    else wait_groups<0>();
    __syncthreads();
    for (int n = 0; n < at.visits; ++n) {
      const int stage = Shape::kStages == 2 ? n % 2 : 0, ds = kOneBarrier ? n % 2 : 0;
      refresh();
      if (Shape::kStages == 2 && !kOneBarrier && n + 1 < at.visits) load(visit(n + 1), 1 - stage);
      first_half(visit(n), stage, ds);
      if (kOneBarrier) wait_groups<0>();
      __syncthreads();
      if (kOneBarrier && n + 2 < at.visits) load(visit(n + 2), stage);
      second_half(visit(opaque(n)), stage, ds);  // found anew: registers are dear
      if (kOneBarrier) continue;
      if (Shape::kStages == 1 && n + 1 < at.visits) {
        __syncthreads();
        load(visit(n + 1), 0);
      }
      wait_groups<0>();
      __syncthreads();
    }
    __syncthreads();
  }

  __device__ int tiles() const { return at.high > at.low ? (at.high - at.low / 16 * 16 + kTileQ - 1) / kTileQ : 0; }
  __device__ int pieces() const {
    return (p.mask.blocks.q + 15 + kTileQ - 1) / kTileQ;
  }  // of a block that begins anywhere
  __device__ Visit visit(int n) const {
    if (!p.mask.blocks.q) {
      const int h = p.heads_q == p.heads_kv ? 0 : n / tiles();
      return {h, at.low / 16 * 16 + (n - h * tiles()) * kTileQ, 0, at.seq.len_q};
    }
    const int64_t begin = int64_t(at.hit[n / pieces()]) * p.mask.blocks.q,
                  first = begin / 16 * 16 + n % pieces() * kTileQ;
    const int until = clamp(begin + p.mask.blocks.q, 0, at.seq.len_q);
    // A piece beyond the block has no rows of its own.
    return {at.head, clamp(first, 0, until / 16 * 16), first < until ? int(begin) : INT32_MAX, until};
  }

  __device__ bool next_round() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      at.block += kThreads;
      if (int64_t(at.block) * p.mask.blocks.q >= at.high) ++at.head, at.block = at.low / p.mask.blocks.q;
    }
    __syncthreads();
    return at.head < group();
  }

  // The query blocks of this round that list this key block, in order. How many visits they make.
  __device__ int find_hits() const {
    const BlockList list{p.mask.blocks,
                         a.row<const int32_t>(Role::block_begin, at.b, 0, at.head_kv * group() + at.head),
                         a.row<const int32_t>(Role::block_column)};
    const int key_block = at.first / p.mask.blocks.k;
    const int64_t block = int64_t(at.block) + threadIdx.x;
    bool hit = false;
    if (block * p.mask.blocks.q < at.high)
      for (int n = list.count(int(block)) - 1; n >= 0 && !hit; --n) hit = list.key_block(int(block), n) == key_block;
    const uint32_t hits = __ballot_sync(~0u, hit);
    if (lane == 0) at.of_warp[warp] = __popc(hits);
    __syncthreads();
    int before = __popc(hits & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < Shape::kWarps; ++w) before += w < warp ? at.of_warp[w] : 0, all += at.of_warp[w];
    if (hit) at.hit[before] = int(block);
    __syncthreads();
    return all * pieces();
  }

  // The warp's part of a gradient, through the shared memory of the tile it belongs to.
  template <class Layout, int kColumns>
  __device__ void store(Role role, const Accumulator (&acc)[kM][kColumns], uint32_t tile, int dim, float factor) const {
    if (!a.given(role)) return;
    const bool direct = p.dtype.grad == DType::f32 || x.shared_keys;
    const bool paged = p.keys == KeySource::paged;
    const auto row_of = [&]<class G>(int key, G*) {
      return paged ? PagedRows<G>(p, a, role, at.seq, at.b, at.head_kv).row(at.first + key)
                   : LinearRows<G>(p, a, role, at.seq, at.b, at.head_kv).row(at.first + key);
    };
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = warp_k() * kKeys + m * 16 + half * 8 + lane / 4;
        if (direct && key >= at.count) continue;
#pragma unroll
        for (int d = 0; d < kColumns; ++d) {
          const int column = warp_q() * kColumns * 8 + d * 8 + lane % 4 * 2;
          const float low = acc[m][d].c[2 * half] * factor, high = acc[m][d].c[2 * half + 1] * factor;
          if (!direct) {
            store_shared(tile + Layout::offset(key, column / 8 * 8) + lane % 4 * 4, pack<T>(low, high));
          } else if (column < dim) {
            if (p.dtype.grad != DType::f32) add_pair(row_of(key, static_cast<T*>(nullptr)) + column, low, high);
            else if (float* to = row_of(key, static_cast<float*>(nullptr)) + column; x.shared_keys)
              atomicAdd(to, low), atomicAdd(to + 1, high);
            else to[0] = low, to[1] = high;
          }
        }
      }
    if (direct) return;
    __syncthreads();
    constexpr int kChunks = Layout::kPanels * 8;
    for (int n = threadIdx.x; n < kTileK * kChunks; n += kThreads) {
      const int key = n / kChunks, column = n % kChunks * 8;
      if (key < at.count && column < dim)
        *reinterpret_cast<uint4*>(row_of(key, static_cast<T*>(nullptr)) + column) =
            load_shared16(tile + Layout::offset(key, column));
    }
  }
};

// Which machines choose a kernel: those whose blocks may have this much shared memory. Code that only others run leaves
// it empty. Every code has the kernels of small machines: sm_86 runs that of sm_80, and sm_120 that of sm_90.
enum class Room { any, small, middle, large };
constexpr int kLargeFrom = 900;
constexpr bool is_middle(int code) { return code == 800 || code == 870; }
__device__ constexpr bool compiled(Room room) {
#ifdef __CUDA_ARCH__
  return room == Room::middle ? is_middle(__CUDA_ARCH__) : room != Room::large || __CUDA_ARCH__ >= kLargeFrom;
#else
  return true;
#endif
}

template <class T, int Dim, int DimV, class Shape, bool WithOptions, Room room = Room::any>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    backward_keys_kernel(const __grid_constant__ BackwardParams params) {
  if constexpr (compiled(room)) {
    extern __shared__ __align__(128) char shared[];
    __shared__ KeyPlace place;
    __shared__ int2 seen[Shape::kTileK];
    BackwardKeys<T, Dim, DimV, Shape, WithOptions> keys(params, shared, place, seen);
    if (threadIdx.x == 0) keys.find_place();
    __syncthreads();
    if (place.count > 0) keys.run();
  }
}

}  // namespace attune::sm80
