// SPDX-License-Identifier: Apache-2.0
// dQ in a fixed order, for deterministic runs with a block list: a CTA owns query rows and walks their keys.
//   load q, dO -> for each key tile: S, dP, dS; dQ += dS K -> store
// A warp owns 16 rows, so dS leaves the first two products as an operand of the third, and warps exchange nothing. S
// and dP are computed a second time; memory stays linear and no sum depends on timing.
#pragma once
#include "attention/sm80/backward/kernel.h"
#include "attention/sm80/block_tiles.h"
#include "attention/sm80/tile_product.h"

namespace attune::sm80 {

// Compile-time configuration.
struct RowsConfig {
  int dim = 128;
  int tile_q = 64, tile_k = 64;
  int stages = 1;         // stages of K and V
  int blocks_per_sm = 2;
};

struct RowPlace {
  Sequence seq;
  int b, head, head_kv;
  int first, rows;
  int first_tile, tiles;      // key tiles
  int open_first, open_last;  // range of keys that every row sees
};

template <class T, RowsConfig C>
struct BackwardRows {
  static constexpr int kDim = C.dim, kTileQ = C.tile_q, kTileK = C.tile_k, kStages = C.stages;
  static constexpr int kWarps = kTileQ / 16, kThreads = kWarps * 32, kBlocksPerSm = C.blocks_per_sm;
  using TileOfQ = SharedTile<kTileQ, kDim>;
  using TileOfO = SharedTile<kTileQ, kDim>;
  using TileOfK = SharedTile<kTileK, kDim>;
  using TileOfV = SharedTile<kTileK, kDim>;
  struct Stage {
    char k[TileOfK::kBytes], v[TileOfV::kBytes];
  };
  struct Shared {
    char q[TileOfQ::kBytes], d_out[TileOfO::kBytes];
    Stage stages[kStages];
  };
  static constexpr int kO = offsetof(Shared, d_out), kStage0 = offsetof(Shared, stages), kSharedBytes = sizeof(Shared);
  static constexpr int kV = offsetof(Stage, v), kStageBytes = sizeof(Stage);

  const BackwardParams& x;
  const Problem& p;
  const DenseArgs& a;
  int lane, warp;  // refreshed for every tile: opaque()
  char* const memory;
  uint32_t shared;
  RowPlace& at;
  int2* const seen;  // [kTileQ]: keys that each row sees
  Accumulator dq[kDim / 8];

  __device__ BackwardRows(const BackwardParams& params, char* shared_memory, RowPlace& place, int2* seen_keys)
      : x(params), p(params.problem), a(params.args), memory(shared_memory), at(place), seen(seen_keys) {
    refresh();
  }
  __device__ void refresh() {
    lane = opaque(threadIdx.x % 32), warp = opaque(threadIdx.x / 32);
    __builtin_assume(lane >= 0 && lane < 32 && warp >= 0 && warp < kWarps);
    shared = uint32_t(opaque(int(shared_address(memory))));
  }
  __device__ uint32_t k_shared(int stage) const { return shared + kStage0 + stage * kStageBytes; }
  __device__ uint32_t v_shared(int stage) const { return k_shared(stage) + kV; }
  __device__ BandWalk walk() const { return {at.seq.band, at.seq.len_k, kTileK}; }
  __device__ BlockList list() const {
    return {p.mask.blocks, a.row<const int32_t>(Role::block_begin, at.b, 0, at.head),
            a.row<const int32_t>(Role::block_column)};
  }
  __device__ int key_tiles_per_block() const { return (p.mask.blocks.k + kTileK - 1) / kTileK; }

  // Called by one thread.
  __device__ void find_place() {
    uint32_t n = blockIdx.x;
    const int tile = x.tiles - 1 - int(n % x.tiles);  // causal: longest first
    n /= x.tiles;
    at.head = int(n % p.heads_q), at.b = int(n / p.heads_q), at.head_kv = at.head / (p.heads_q / p.heads_kv);
    at.seq = sequence_of(x, at.b);
    const Blocks size = p.mask.blocks;
    const auto [first, last] = tile_range(tile, kTileQ, size.q);
    at.first = clamp(first, 0, at.seq.len_q), at.rows = clamp(last, 0, at.seq.len_q) - at.first;
    if (at.rows <= 0) return;
    const int end = at.first + at.rows - 1;
    at.open_first = walk().first_key(end), at.open_last = walk().last_key(at.first);
    at.first_tile = size.q ? 0 : walk().first_key(at.first) / kTileK;
    at.tiles = size.q ? list().count(at.first / size.q) * key_tiles_per_block()
                      : max(0, int(ceil_div(walk().last_key(end), kTileK)) - at.first_tile);
  }
  __device__ Tile tile(int n) const {
    int64_t first = int64_t(at.first_tile + n) * kTileK, last = first + kTileK;
    if (p.mask.blocks.q) {
      const int block = list().key_block(at.first / p.mask.blocks.q, n / key_tiles_per_block());
      const int64_t begin = int64_t(block) * p.mask.blocks.k;
      first = begin + n % key_tiles_per_block() * kTileK, last = min(first + kTileK, begin + p.mask.blocks.k);
    }
    const int end = clamp(last, 0, at.seq.len_k), start = clamp(first, 0, end);
    return {start, end, at.open_first > start || at.open_last < start + kTileK || end < start + kTileK};
  }

  template <class Layout>
  __device__ void load_queries(Role role, uint32_t to, int dim) const {
    constexpr int kChunks = Layout::kPanels * 8;
    for (int n = threadIdx.x; n < kTileQ * kChunks; n += kThreads) {
      const int row = n / kChunks, column = n % kChunks * 8;
      const bool there = row < at.rows && column < dim;
      const T* from = a.row<const T>(role);
      if (there)
        from = a.row<const T>(role, at.seq.q_batch, at.seq.q_first + int64_t(at.first + row), at.head) + column;
      copy16(to + Layout::offset(row, column), from, there);
    }
  }
  template <class Layout>
  __device__ void load_keys(Role role, uint32_t to, int dim, const Tile& t) const {
    constexpr int kChunks = Layout::kPanels * 8;
    const bool paged = p.keys == KeySource::paged;
    for (int n = threadIdx.x; n < kTileK * kChunks; n += kThreads) {
      const int row = n / kChunks, column = n % kChunks * 8;
      const bool there = t.first + row < t.last && column < dim;
      const T* from = a.row<const T>(role);
      if (there) from = paged ? PagedRows<const T>(p, a, role, at.seq, at.b, at.head_kv).row(t.first + row) + column
                              : LinearRows<const T>(p, a, role, at.seq, at.b, at.head_kv).row(t.first + row) + column;
      copy16(to + Layout::offset(row, column), from, there);
    }
  }
  __device__ void load(const Tile& t, int stage) const {
    load_keys<TileOfK>(Role::k, k_shared(stage), p.dim_qk, t);
    load_keys<TileOfV>(Role::v, v_shared(stage), p.dim_v, t);
    close_group();
  }

  struct Pairs {
    const BackwardRows& of;
    const Tile& t;
    const float2 (&rows)[2];
    int first, key;  // position of element (0, 0, 0): row within its tile, key
    int last_i, last_j;
    __device__ int in_tile(int e) const { return first + e / 2 * 8; }
    __device__ int i(int, int, int e) const { return of.at.first + in_tile(e); }
    __device__ int j(int, int n, int e) const { return key + n * 8 + e % 2; }
    __device__ float2 row(int, int, int e) const { return rows[e / 2]; }
    __device__ bool hidden(int m, int n, int e) const {
      const int2 keys = of.seen[in_tile(e)];
      return j(m, n, e) < keys.x || j(m, n, e) >= min(keys.y, t.last);
    }
  };
  __device__ void compute(const Tile& t, int stage, const float2 (&row)[2]) {
    Accumulator s[1][kTileK / 8], dp[1][kTileK / 8];
    multiply_tiles<T, TileOfQ, TileOfK>(s[0], shared, k_shared(stage), warp, lane);
    multiply_tiles<T, TileOfO, TileOfV>(dp[0], shared + kO, v_shared(stage), warp, lane);
    refresh();
    General score(p, a, at.seq, at.b, at.head);
    score.bias = nullptr, score.block_bias = nullptr;  // a deterministic run has none; removes their code
    const Pairs pairs{*this, t, row, warp * 16 + lane / 4, t.first + lane % 4 * 2, at.seq.len_q - 1, at.seq.len_k - 1};
    differentiate_pairs(pairs, a, score, x.kept, s, dp);
    uint32_t ds[kTileK / 8][2];
#pragma unroll
    for (int n = 0; n < kTileK / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ds[n][half] = pack<T>(dp[0][n].c[2 * half], dp[0][n].c[2 * half + 1]);
    refresh();
    add_product<T, TileOfK>(dq, ds, k_shared(stage), lane);
  }

  __device__ void run() {
    for (int r = threadIdx.x; r < kTileQ; r += kThreads)
      seen[r] = r < at.rows ? int2{walk().first_key(at.first + r), walk().last_key(at.first + r)} : int2{INT32_MAX, 0};
    load_queries<TileOfQ>(Role::q, shared, p.dim_qk);
    load_queries<TileOfO>(Role::d_out, shared + kO, p.dim_v);
    if (at.tiles > 0) load(tile(0), 0);
    float2 row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp * 16 + half * 8 + lane / 4;
      row[half] = {INFINITY, 0.f};
      if (r >= at.rows) continue;
      const int64_t i = at.seq.q_first + int64_t(at.first + r);
      row[half].x = lse_of_weights(*a.template row<const float>(Role::lse, at.seq.q_batch, i, at.head));
      row[half].y = x.rows[(int64_t(at.b) * p.heads_q + at.head) * x.padded + at.first + r].y;
    }
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) dq[d] = {};
    for (int n = 0; n < at.tiles; ++n) {
      const int stage = kStages == 2 ? n % 2 : 0;
      refresh();
      wait_groups<0>();
      __syncthreads();
      if (kStages == 2 && n + 1 < at.tiles) load(tile(n + 1), 1 - stage);
      compute(tile(n), stage, row);
      if (kStages == 1 && n + 1 < at.tiles) {
        __syncthreads();
        load(tile(n + 1), 0);
      }
    }
    wait_groups<0>();
    __syncthreads();
    const float scale = x.scale * x.kept.out;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp * 16 + half * 8 + lane / 4;
      if (r >= at.rows) continue;
      char* to = row_address(a[Role::dq], at.seq.q_batch, at.seq.q_first + int64_t(at.first + r), at.head);
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        const int column = d * 8 + lane % 4 * 2;
        const float low = dq[d].c[2 * half] * scale, high = dq[d].c[2 * half + 1] * scale;
        if (column >= p.dim_qk) continue;
        float2* f32 = reinterpret_cast<float2*>(to + column * 4);
        if (x.running) *f32 = {f32->x + low, f32->y + high};
        else if (p.dtype.grad == DType::f32) *f32 = {low, high};
        else *reinterpret_cast<uint32_t*>(to + column * 2) = pack<T>(low, high);
      }
    }
  }
};

template <class R>
__global__ void __launch_bounds__(R::kThreads, R::kBlocksPerSm)
    backward_rows_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ RowPlace place;
  __shared__ int2 seen[R::kTileQ];
  R rows(params, shared, place, seen);
  if (threadIdx.x == 0) rows.find_place();
  __syncthreads();
  if (place.rows > 0) rows.run();
}

}  // namespace attune::sm80
