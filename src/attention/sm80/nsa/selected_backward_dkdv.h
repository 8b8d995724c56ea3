// SPDX-License-Identifier: Apache-2.0
// dK and dV of selected attention. A CTA has up to 64 keys of one key block and a chunk of the tokens that chose it.
//   load k, v -> for every 32 rows (token, head): S^T, P^T; dV += P^T dO; dP^T, dS^T; dK += dS^T Q -> store
// A warp owns 16 keys, so P^T and dS^T leave the first products as operands of the others, and sums stay in registers.
// Rows are gathered token by token; the rows of 16 heads are contiguous. Head dims above 192 have too many sums for the
// registers: dK and dV are then two kernels.
#pragma once
#include <cstddef>

#include "attention/sm80/large_logits.h"
#include "attention/sm80/nsa/selected_backward_instances.h"
#include "attention/sm80/tile_product.h"

namespace attune::sm80 {

struct SelectedKeysShared {
  Sequence seq;
  int4 chunk;                            // list, first token, token count, partial result or -1
  int b, head_kv, first, last;           // keys
  float2 end[kMostKeyStages][kKeyRows];  // per row: lse_of_weights() in base 2, and delta
  int until[kMostKeyStages][kKeyRows];   // keys that the row sees
};

// Compile-time configuration.
struct SelectedKeysConfig {
  int dim = 128, dim_v = dim;
  bool dk = true, dv = true;  // gradients it computes
};

template <class T, SelectedKeysConfig C>
struct SelectedKeys {
  static constexpr int kDim = C.dim, kDimV = C.dim_v;
  static constexpr bool kWithDk = C.dk, kWithDv = C.dv;
  using TileOfK = SharedTile<kKeysOfTile, kDim>;
  using TileOfV = SharedTile<kKeysOfTile, kDimV>;
  using TileOfQ = SharedTile<kKeyRows, kDim>;
  using TileOfO = SharedTile<kKeyRows, kDimV>;
  static constexpr int kThreads = kKeyWarps * 32;
  // Dynamic shared memory: the keys, then the stages of rows. A call decides how many stages there are.
  struct Keys {
    char k[TileOfK::kBytes], v[TileOfV::kBytes];
  };
  struct Stage {
    char q[TileOfQ::kBytes], d_out[TileOfO::kBytes];
  };
  static constexpr int kV = offsetof(Keys, v), kFixedBytes = sizeof(Keys);
  static constexpr int kO = offsetof(Stage, d_out), kStageBytes = sizeof(Stage);

  const SelectedKeysParams& y;
  const SelectedParams& x;
  SelectedKeysShared& shared;
  const int lane, warp;
  const uint32_t k_shared, v_shared, stage0;
  Accumulator dk[kWithDk ? kDim / 8 : 1], dv[kWithDv ? kDimV / 8 : 1];

  __device__ SelectedKeys(const SelectedKeysParams& params, SelectedKeysShared& s, uint32_t memory)
      : y(params), x(params.x), shared(s), lane(threadIdx.x % 32), warp(threadIdx.x / 32), k_shared(memory),
        v_shared(memory + kV), stage0(memory + kFixedBytes) {}

  __device__ uint32_t q_shared(int stage) const { return stage0 + stage * kStageBytes; }
  __device__ uint32_t o_shared(int stage) const { return q_shared(stage) + kO; }

  // Called by one thread. Returns false if the chunk does not exist or has no keys in this tile.
  __device__ bool find_place() const {
    const int n = int(blockIdx.x) / y.tiles_per_block, tile = int(blockIdx.x) % y.tiles_per_block;
    if (n >= *y.lists.total) return false;
    shared.chunk = y.lists.chunks[n];
    const int sequence_head = shared.chunk.x / y.lists.blocks, block = shared.chunk.x % y.lists.blocks;
    shared.b = int(x.heads_kv.divide(sequence_head)), shared.head_kv = int(x.heads_kv.rest(sequence_head));
    shared.seq = x.sequence_of(shared.b);
    const int64_t begin = int64_t(block) * x.size, first = begin + tile * kKeysOfTile;
    const int end = clamp(begin + x.size, 0, shared.seq.len_k);
    shared.first = clamp(first, 0, end), shared.last = clamp(first + kKeysOfTile, 0, end);
    return shared.first < shared.last;
  }

  // Each thread copies one 16-byte column in every panel, of every 16th row.
  template <class Layout>
  __device__ void load_row(uint32_t to, const char* from, int row, int dim, bool there) const {
    const int column = threadIdx.x % 8 * 8;
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      const bool real = there && panel * 64 + column < dim;
      copy16(to + Layout::offset(row, panel * 64 + column), real ? from + (panel * 64 + column) * sizeof(T) : x.q.data,
             real);
    }
  }
  __device__ void load_keys() const {
    const char* k = x.k.row(shared.seq.k_batch, shared.seq.k_first, shared.head_kv);
    const char* v = x.v.row(shared.seq.k_batch, shared.seq.k_first, shared.head_kv);
    for (int row = threadIdx.x / 8; row < kKeysOfTile; row += kThreads / 8) {
      const int64_t key = shared.first + row;
      load_row<TileOfK>(k_shared, k + key * x.k.seq, row, x.problem.dim_qk, key < shared.last);
      load_row<TileOfV>(v_shared, v + key * x.v.seq, row, x.problem.dim_v, key < shared.last);
    }
  }
  __device__ int rows() const { return shared.chunk.z * int(x.group.by); }
  // Token of a row of the chunk; 0 beyond the last.
  __device__ int token_of(int row) const {
    return row < rows() ? clamp(y.lists.tokens[shared.chunk.y + x.group.divide(row)], 0, shared.seq.len_q - 1) : 0;
  }
  __device__ void load_rows(int tile, int stage, const int (&token)[2]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int r = threadIdx.x / 8 + n * 16, row = tile * kKeyRows + r;
      const bool there = row < rows();
      const int head = shared.head_kv * int(x.group.by) + int(x.group.rest(there ? row : 0));
      const int64_t at = shared.seq.q_first + int64_t(token[n]);
      load_row<TileOfQ>(q_shared(stage), x.q.row(shared.seq.q_batch, at, head), r, x.problem.dim_qk, there);
      load_row<TileOfO>(o_shared(stage), x.d_out.row(shared.seq.q_batch, at, head), r, x.problem.dim_v, there);
      if (threadIdx.x % 8) continue;
      // A missing row is filled with zeros and adds zeros.
      copy8(shared_address(&shared.end[stage][r]),
            x.row_stats + (int64_t(shared.b) * x.problem.heads_q + head) * x.padded + token[n], there);
      shared.until[stage][r] = BandWalk{shared.seq.band, shared.seq.len_k, 1}.last_key(token[n]);
    }
  }

  __device__ void compute(int stage) {
    const bool large_logits = any_large_logit<kKeyRows>(shared.end[stage], lane);
    Accumulator one[1][kKeyRows / 8], (&s)[kKeyRows / 8] = one[0];
    multiply_tiles<T, TileOfK, TileOfQ>(s, k_shared, q_shared(stage), warp, lane);
    const int key = shared.first + warp * 16 + lane / 4;
    uint32_t p[kKeyRows / 8][2];
#pragma unroll
    for (int n = 0; n < kKeyRows / 8; ++n) {
      const int row = n * 8 + lane % 4 * 2;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float weight = exp2_fast(fmaf(s[n].c[e], x.scale, -shared.end[stage][row + e % 2].x));
        s[n].c[e] = key + e / 2 * 8 < shared.until[stage][row + e % 2] ? weight : 0.f;
      }
    }
    if (large_logits) cut_large_logits(one, shared.end[stage], lane);
#pragma unroll
    for (int n = 0; n < kKeyRows / 8; ++n)
      p[n][0] = pack<T>(s[n].c[0], s[n].c[1]), p[n][1] = pack<T>(s[n].c[2], s[n].c[3]);
    if constexpr (kWithDv) add_product<T, TileOfO>(dv, p, o_shared(stage), lane);
    if constexpr (kWithDk) {
      Accumulator dp[kKeyRows / 8];
      multiply_tiles<T, TileOfV, TileOfO>(dp, v_shared, o_shared(stage), warp, lane);
#pragma unroll
      for (int n = 0; n < kKeyRows / 8; ++n) {
        const int row = n * 8 + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[n].c[e] = s[n].c[e] * (dp[n].c[e] - shared.end[stage][row + e % 2].y);
        p[n][0] = pack<T>(dp[n].c[0], dp[n].c[1]), p[n][1] = pack<T>(dp[n].c[2], dp[n].c[3]);
      }
      add_product<T, TileOfQ>(dk, p, q_shared(stage), lane);
    }
  }

  // Tokens are found two tiles before their rows are used; rows are loaded one or two tiles before.
  __device__ void run() {
    load_keys();
    const int tiles = (rows() + kKeyRows - 1) / kKeyRows, ahead = y.stages - 1;
    int token[2];
    const auto find = [&](int tile) {
#pragma unroll
      for (int n = 0; n < 2; ++n) token[n] = token_of(tile * kKeyRows + threadIdx.x / 8 + n * 16);
    };
    for (int tile = 0; tile < ahead; ++tile) {
      find(tile);
      if (tile < tiles) load_rows(tile, tile, token);
      close_group();
    }
    find(ahead);
#pragma unroll
    for (int d = 0; d < int(sizeof dk / sizeof dk[0]); ++d) dk[d] = {};
#pragma unroll
    for (int d = 0; d < int(sizeof dv / sizeof dv[0]); ++d) dv[d] = {};
    const bool busy = shared.first + warp * 16 < shared.last;
    int stage = 0, next = ahead;
    for (int tile = 0; tile < tiles; ++tile) {
      if (ahead == 2) wait_groups<1>();
      else wait_groups<0>();
      __syncthreads();
      if (tile + ahead < tiles) load_rows(tile + ahead, next, token);
      close_group();
      find(tile + ahead + 1);
      if (busy) compute(stage);
      if (++stage == y.stages) stage = 0;
      if (++next == y.stages) next = 0;
    }
    wait_groups<0>();
    if (busy) store();
  }

  __device__ void store() {
    const float scale = x.scale * kLn2;  // without log2(e)
    if constexpr (kWithDk) {
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) dk[d].c[e] *= scale;
      store<kDim>(dk, x.args[Role::dk], 0, x.problem.dim_qk);
    }
    if constexpr (kWithDv) store<kDimV>(dv, x.args[Role::dv], x.problem.dim_qk, x.problem.dim_v);
  }
  template <int kColumns>
  __device__ void store(const Accumulator (&sums)[kColumns / 8], const Tensor& t, int partial_column, int dim) const {
    if (!t.data) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + half * 8 + lane / 4, key = shared.first + row;
      if (key >= shared.last) continue;
      const int64_t slot = int64_t(shared.chunk.w) * y.tiles_per_block + blockIdx.x % y.tiles_per_block;
      char* to = row_address(t, shared.seq.k_batch, shared.seq.k_first + int64_t(key), shared.head_kv);
      float* f32 = reinterpret_cast<float*>(to);
      if (shared.chunk.w >= 0)
        f32 = y.partial + (slot * kKeysOfTile + row) * (x.problem.dim_qk + x.problem.dim_v) + partial_column;
      const bool narrow = shared.chunk.w < 0 && t.dtype != DType::f32;
#pragma unroll
      for (int d = 0; d < kColumns / 8; ++d) {
        const int column = d * 8 + lane % 4 * 2;
        if (column >= dim) break;
        const float low = sums[d].c[2 * half], high = sums[d].c[2 * half + 1];
        if (narrow) *reinterpret_cast<uint32_t*>(to + column * sizeof(T)) = pack<T>(low, high);
        else *reinterpret_cast<float2*>(f32 + column) = {low, high};
      }
    }
  }
};

template <class S>
__global__ void __launch_bounds__(kKeyWarps * 32, S::kDim > 192 ? 1 : 2)
    selected_keys_kernel(const __grid_constant__ SelectedKeysParams params) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SelectedKeysShared shared;
  __shared__ bool there;
  S keys(params, shared, shared_address(memory));
  if (threadIdx.x == 0) there = keys.find_place();
  __syncthreads();
  if (there) keys.run();
}

template <SelectedKeysConfig C>
constexpr SelectedKeysKernel dkdv_instance() {
  using F = SelectedKeys<F16, C>;
  using B = SelectedKeys<Bf16, C>;
  return {
      C.dim, C.dim_v, C.dk, C.dv, F::kFixedBytes, F::kStageBytes, {selected_keys_kernel<F>, selected_keys_kernel<B>}};
}

}  // namespace attune::sm80
