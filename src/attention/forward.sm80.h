// Forward attention with mma.sync and cp.async: the kernel. Built for every GPU from sm_80 on.
//   load q -> for each key tile: wait k, load v; scores, hide, admit; wait v, load next k; accumulate -> store
// K and V have one buffer each and a load hides behind the other's product; two blocks a multiprocessor hide the rest.
// A warp owns 16 or 32 rows: with 32, every fragment of K and V feeds two products. The reference of a row moves only
// when its maximum grew by more than 2^kLazy, row by row: a row's bits do not depend on what shares its tile.
#pragma once
#include "core/score.h"
#include "machine/sm80/matrix.h"

namespace attune::sm80 {

constexpr float kLazy = 8.f;

struct ForwardParams {
  Problem problem;
  DenseArgs args;
  int group;              // query heads that share a block's rows, ordered (position, head); 1: a block has one head
  int row_blocks;         // of one unit; a unit is `group` heads of one sequence
  int splits;
  float* partial_out;     // [split][batch][head][query][dim_v], where splits > 1
  float* partial_lse;     // [split][batch][head][query]
  uint32_t* arrived;      // [batch][unit][row block], 0 before and after
};

// Which rows and keys a block has. In shared memory: it is read at the edges of the loop, where registers are dear.
struct Place {
  Sequence seq;
  int b, unit, split, block;
  int head_q, head_kv;
  int first, rows;            // of the unit's rows
  int first_tile, tiles;      // key tiles of this split
  int open_first, open_last;  // keys that every row of the block sees
};

template <class T, int Dim, int DimV, int TileQ, int TileK, int Warps, bool WithOptions>
struct Forward {
  static constexpr int kThreads = Warps * 32, kRowsOfWarp = TileQ / Warps, kM = kRowsOfWarp / 16;
  static_assert(kRowsOfWarp % 16 == 0 && TileK % 16 == 0 && Dim % 16 == 0 && DimV % 16 == 0);
  using TileOfQ = SharedTile<TileQ, Dim>;
  using TileOfK = SharedTile<TileK, Dim>;
  using TileOfV = SharedTile<TileK, DimV>;
  using TileOfO = SharedTile<TileQ, DimV>;
  static constexpr int kQBytes = TileOfQ::kBytes > TileOfO::kBytes ? TileOfQ::kBytes : TileOfO::kBytes;  // o reuses q
  static constexpr int kSharedBytes = kQBytes + TileOfK::kBytes + TileOfV::kBytes;

  const ForwardParams& x;
  const Problem& p;
  const DenseArgs& a;
  const int lane, warp;
  const uint32_t q_shared, k_shared, v_shared;
  Place& at;
  int2* const seen;  // [TileQ]: the keys that each row sees, from x until y
  Accumulator o[kM][DimV / 8];
  float ref[kM][2], sum[kM][2];

  __device__ Forward(const ForwardParams& params, char* shared, Place& place, int2* seen_keys)
      : x(params), p(params.problem), a(params.args), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
        q_shared(shared_address(shared)), k_shared(q_shared + kQBytes), v_shared(k_shared + TileOfK::kBytes), at(place),
        seen(seen_keys) {}

  __device__ int units() const { return p.heads_q / x.group; }
  __device__ int position(int row) const { return x.group == 1 ? row : row / x.group; }
  __device__ int head(int row) const { return x.group == 1 ? at.head_q : at.head_q + row % x.group; }
  // Row of the block that this thread's accumulators hold: m-th fragment, half 0 or 1.
  __device__ int row_of(int m, int half) const { return warp * kRowsOfWarp + m * 16 + half * 8 + lane / 4; }
  __device__ BandWalk walk() const { return {at.seq.band, at.seq.len_k, TileK}; }

  // By one thread.
  __device__ void find_place() {
    int64_t n = blockIdx.x;
    at.block = x.row_blocks - 1 - int(n % x.row_blocks), n /= x.row_blocks;  // causal: the longest first
    at.split = int(n % x.splits), n /= x.splits;
    at.unit = int(n % units()), at.b = int(n / units());
    at.head_q = at.unit * x.group, at.head_kv = at.head_q / (p.heads_q / p.heads_kv);
    at.seq = sequence(p, a, at.b);
    const Blocks size = p.mask.blocks;
    int last;
    if (size.q) {  // a block of rows lies in one query block
      const int pieces = (size.q + TileQ - 1) / TileQ, piece = at.block % pieces;
      const int64_t start = int64_t(at.block / pieces) * size.q;
      at.first = clamp(start + piece * TileQ, 0, at.seq.len_q);
      last = clamp(start + min((piece + 1) * TileQ, size.q), 0, at.seq.len_q);
    } else {
      const int64_t count = int64_t(at.seq.len_q) * x.group;
      at.first = clamp(int64_t(at.block) * TileQ, 0, count), last = clamp(int64_t(at.block + 1) * TileQ, 0, count);
    }
    at.rows = last - at.first;
    if (at.rows <= 0) return;
    const int top = position(at.first), bottom = position(last - 1);
    at.open_first = walk().first_key(bottom), at.open_last = walk().last_key(top);
    int64_t all;
    if (size.q) {
      all = int64_t(list().count(at.first / size.q)) * ((size.k + TileK - 1) / TileK);
      at.first_tile = 0;
    } else {
      at.first_tile = walk().first_key(top) / TileK;
      all = ceil_div(walk().last_key(bottom), TileK) - at.first_tile;
    }
    all = all > 0 ? all : 0;
    const int64_t from = all * at.split / x.splits, until = all * (at.split + 1) / x.splits;
    at.first_tile += int(from), at.tiles = int(until - from);
  }
  __device__ BlockList list() const {
    return {p.mask.blocks, a.row<const int32_t>(Role::block_begin, at.b, 0, at.head_q), a.row<const int32_t>(Role::block_column)};
  }
  // The n-th tile; `partial` where some pair in it is hidden.
  __device__ Tile tile(int n) const {
    const Blocks size = p.mask.blocks;
    n += at.first_tile;
    int64_t start = int64_t(n) * TileK, end = start + TileK;
    if (size.q) {
      const int pieces = (size.k + TileK - 1) / TileK;
      const int64_t begin = int64_t(list().key_block(at.first / size.q, n / pieces)) * size.k;
      start = begin + n % pieces * TileK, end = min(start + int64_t(TileK), begin + size.k);
    }
    const int last = clamp(end, 0, at.seq.len_k), from = clamp(start, 0, last);
    return {from, last, at.open_first > from || at.open_last < from + TileK || last < from + TileK};
  }

  __device__ void find_seen() const {
    for (int row = threadIdx.x; row < TileQ; row += kThreads) {
      const int i = position(at.first + min(row, at.rows - 1));
      seen[row] = {walk().first_key(i), walk().last_key(i)};
    }
  }

  __device__ void load_q() const {
    constexpr int kChunks = TileOfQ::kPanels * 8;
    for (int n = threadIdx.x; n < TileQ * kChunks; n += kThreads) {
      const int row = n / kChunks, column = n % kChunks * 8;
      const bool there = row < at.rows && column < p.dim_qk;
      const T* from = there ? a.row<const T>(Role::q, at.seq.q_batch, at.seq.q_first + position(at.first + row), head(at.first + row)) + column : a.row<const T>(Role::q);
      copy16(q_shared + TileOfQ::offset(row, column), from, there);
    }
  }

  template <class Layout>
  __device__ void load_keys(Role role, uint32_t shared, int dim, Tile t) const {
    constexpr int kChunks = Layout::kPanels * 8, kStep = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0);
    const int column = threadIdx.x % kChunks * 8;
    const int64_t stride = a[role].stride.seq;
    const T* base = a.row<const T>(role, at.seq.k_batch, at.seq.k_first + int64_t(t.first), at.head_kv) + column;
    const bool paged = p.keys == KeySource::paged;
#pragma unroll 2
    for (int n = 0; n < TileK / kStep; ++n) {
      const int row = threadIdx.x / kChunks + n * kStep;
      const bool there = t.first + row < t.last && column < dim;
      const T* from = base + row * stride;
      if (paged && there) from = PagedRows<const T>(p, a, role, at.seq, at.b, at.head_kv).row(t.first + row) + column;
      copy16(shared + Layout::offset(row, column), there ? from : a.row<const T>(role), there);
    }
  }

  // s = q k^T
  __device__ void scores(Accumulator (&s)[kM][TileK / 8]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < TileK / 8; ++n) s[m][n] = {};
    const uint32_t q_first = q_shared + TileOfQ::offset(warp * kRowsOfWarp + lane % 16, lane / 16 * 8);
    const uint32_t k_first = k_shared + TileOfK::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
    for (int k = 0; k < Dim; k += 16) {
      FragmentA q[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) load_matrix4(q[m].r, TileOfQ::further(q_first, k) + m * 16 * 128);
#pragma unroll
      for (int n = 0; n < TileK / 8; n += 2) {
        uint32_t two[4];
        load_matrix4(two, TileOfK::further(k_first, k) + n * 8 * 128);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<T>(s[m][n], q[m], {two[0], two[1]});
          multiply_add<T>(s[m][n + 1], q[m], {two[2], two[3]});
        }
      }
    }
  }

  // The options, and what a row does not see. Without options only tiles at the edge come here.
  __device__ void hide(Accumulator (&s)[kM][TileK / 8], Tile t, const General* score) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = WithOptions ? position(at.first + row_of(m, half)) : 0;
        const int2 keys = seen[row_of(m, half)];
        const int from = keys.x, until = min(keys.y, t.last);
#pragma unroll
        for (int n = 0; n < TileK / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = t.first + n * 8 + lane % 4 * 2 + e;
            float& y = s[m][n].c[2 * half + e];
            if (j < from || j >= until) y = -INFINITY;
            else if constexpr (WithOptions) y = score->logit(y, i, j);
          }
      }
  }

  // The running softmax: references, sums, and p in place of s. Rescales o only where a reference moved.
  __device__ void admit(Accumulator (&s)[kM][TileK / 8], float scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < TileK / 8; ++n) top = fmaxf(top, fmaxf(s[m][n].c[2 * half], s[m][n].c[2 * half + 1]));
        top = row_max(top) * scale;
        const float before = ref[m][half];
        const bool grew = top > before + kLazy;
        ref[m][half] = grew ? top : before;
        factor[half] = grew ? exp2_fast(before - top) : 1.f;
        const float shift = ref[m][half] == -INFINITY ? 0.f : ref[m][half];
        float total = 0.f;
#pragma unroll
        for (int n = 0; n < TileK / 8; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m][n].c[e] = exp2_fast(fmaf(s[m][n].c[e], scale, -shift));
            total += s[m][n].c[e];
          }
        sum[m][half] = sum[m][half] * factor[half] + total;
      }
      if (__any_sync(~0u, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
        for (int d = 0; d < DimV / 8; ++d)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[m][d].c[e] *= factor[e / 2];
      }
    }
  }

  __device__ void drop(Accumulator (&s)[kM][TileK / 8], Tile t, const General& score) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < TileK / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n].c[e] *= score.keep(position(at.first + row_of(m, e / 2)), t.first + n * 8 + lane % 4 * 2 + e % 2);
  }

  // o += p v
  __device__ void accumulate(const Accumulator (&s)[kM][TileK / 8]) {
    const uint32_t v_first = v_shared + TileOfV::offset(lane % 16, lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < TileK; k += 16) {
      FragmentA weights[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const Accumulator &low = s[m][k / 8], &high = s[m][k / 8 + 1];
        weights[m] = {{pack<T>(low.c[0], low.c[1]), pack<T>(low.c[2], low.c[3]), pack<T>(high.c[0], high.c[1]), pack<T>(high.c[2], high.c[3])}};
      }
#pragma unroll
      for (int d = 0; d < DimV / 8; d += 2) {
        uint32_t two[4];
        load_matrix4_transposed(two, TileOfV::further(v_first, d * 8) + k * 128);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<T>(o[m][d], weights[m], {two[0], two[1]});
          multiply_add<T>(o[m][d + 1], weights[m], {two[2], two[3]});
        }
      }
    }
  }

  __device__ void run() {
    const bool work = at.tiles > 0;
    find_seen();
    load_q();
    if (work) load_keys<TileOfK>(Role::k, k_shared, p.dim_qk, tile(at.tiles - 1));
    close_group();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) ref[m][half] = -INFINITY, sum[m][half] = 0.f;
#pragma unroll
      for (int d = 0; d < DimV / 8; ++d) o[m][d] = {};
    }
    const float scale = WithOptions ? 1.f : scale_of(p, a) * kLog2e;
    const General score(p, a, at.seq, at.b, at.head_q);
    for (int n = at.tiles - 1; n >= 0; --n) {
      const Tile t = tile(n);
      wait_groups<0>();
      __syncthreads();
      load_keys<TileOfV>(Role::v, v_shared, p.dim_v, t);
      close_group();
      Accumulator s[kM][TileK / 8];
      scores(s);
      if (WithOptions || t.partial) hide(s, t, &score);
      admit(s, scale);
      if constexpr (WithOptions)
        if (p.has(Option::dropout)) drop(s, t, score);
      wait_groups<0>();
      __syncthreads();
      if (n > 0) load_keys<TileOfK>(Role::k, k_shared, p.dim_qk, tile(n - 1));
      close_group();
      accumulate(s);
    }
    wait_groups<0>();
    __syncthreads();
    x.splits == 1 ? store() : store_partial();
  }

  __device__ RowEnd end_of(int m, int half) const { return RowEnd(SoftmaxRow{ref[m][half], row_sum(sum[m][half])}); }

  __device__ RowEnd ended(RowEnd end, int row) const {
    const int h = head(at.first + row);
    const int64_t token = at.seq.q_first + position(at.first + row);
    if (p.has(Option::accumulate)) end.merge_running(*a.row<const float>(Role::lse, at.seq.q_batch, token, h));
    if (p.has(Option::sink)) end.merge_sink(*a.row<const float>(Role::sinks, 0, 0, h));
    return end;
  }

  __device__ void store() const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        RowEnd end = end_of(m, half);
        if (row < at.rows) end = ended(end, row);
        const int h = head(at.first + row);
        const int64_t token = at.seq.q_first + position(at.first + row);
        if (p.dtype.out == DType::f32) {
          if (row < at.rows) {
            float* to = a.row<float>(Role::out, at.seq.q_batch, token, h);
#pragma unroll
            for (int d = 0; d < DimV / 8; ++d)
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int column = d * 8 + lane % 4 * 2 + e;
                if (column < p.dim_v) to[column] = o[m][d].c[2 * half + e] * end.now + (end.before == 0.f ? 0.f : to[column] * end.before);
              }
          }
        } else {
#pragma unroll
          for (int d = 0; d < DimV / 8; ++d) {
            const uint32_t two = pack<T>(o[m][d].c[2 * half] * end.now, o[m][d].c[2 * half + 1] * end.now);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(q_shared + TileOfO::offset(row, d * 8) + lane % 4 * 4), "r"(two) : "memory");
          }
        }
        if (row < at.rows && lane % 4 == 0 && a.given(Role::lse)) *a.row<float>(Role::lse, at.seq.q_batch, token, h) = end.lse;
      }
    if (p.dtype.out == DType::f32) return;
    __syncwarp();  // a warp stores the rows it wrote
    constexpr int kChunks = DimV / 8;
    for (int n = lane; n < kRowsOfWarp * kChunks; n += 32) {
      const int row = warp * kRowsOfWarp + n / kChunks, column = n % kChunks * 8;
      if (row >= at.rows || column >= p.dim_v) continue;
      uint4 eight;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                   : "r"(q_shared + TileOfO::offset(row, column)));
      *reinterpret_cast<uint4*>(a.row<T>(Role::out, at.seq.q_batch, at.seq.q_first + position(at.first + row), head(at.first + row)) + column) = eight;
    }
  }

  __device__ int64_t row_index(int row) const { return (int64_t(at.b) * p.heads_q + head(at.first + row)) * p.len_q + position(at.first + row); }
  __device__ int64_t split_rows() const { return int64_t(p.batch) * p.heads_q * p.len_q; }

  // Every split leaves its part; the last to arrive merges them, in their order.
  __device__ void store_partial() const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        const RowEnd end = end_of(m, half);
        if (row >= at.rows) continue;
        const int64_t part = at.split * split_rows() + row_index(row);
        if (lane % 4 == 0) x.partial_lse[part] = end.lse;
#pragma unroll
        for (int d = 0; d < DimV / 8; ++d)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int column = d * 8 + lane % 4 * 2 + e;
            if (column < p.dim_v) x.partial_out[part * p.dim_v + column] = o[m][d].c[2 * half + e] * end.now;
          }
      }
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    uint32_t* counter = x.arrived + (int64_t(at.b) * units() + at.unit) * x.row_blocks + at.block;
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) + 1 == uint32_t(x.splits);
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    for (int row = warp; row < at.rows; row += Warps) merge_row(row);
  }

  __device__ void merge_row(int row) const {
    const int64_t index = row_index(row);
    float lse = -INFINITY, acc[(DimV + 31) / 32] = {};
    for (int n = 0; n < x.splits; ++n) {
      const int64_t part = n * split_rows() + index;
      const Share share = merge(lse, __ldcg(x.partial_lse + part));
      lse = share.lse;
      if (share.b == 0.f) continue;
#pragma unroll
      for (int d = 0; d < (DimV + 31) / 32; ++d)
        if (d * 32 + lane < p.dim_v) acc[d] = acc[d] * share.a + __ldcg(x.partial_out + part * p.dim_v + d * 32 + lane) * share.b;
    }
    const RowEnd end = ended(RowEnd(lse), row);
    const int h = head(at.first + row);
    const int64_t place = at.seq.q_first + position(at.first + row);
#pragma unroll
    for (int d = 0; d < (DimV + 31) / 32; ++d) {
      const int column = d * 32 + lane;
      if (column >= p.dim_v) continue;
      if (p.dtype.out == DType::f32) {
        float* to = a.row<float>(Role::out, at.seq.q_batch, place, h) + column;
        *to = acc[d] * end.now + (end.before == 0.f ? 0.f : *to * end.before);
      } else {
        const uint32_t two = pack<T>(acc[d] * end.now, 0.f);
        reinterpret_cast<uint16_t*>(a.row<T>(Role::out, at.seq.q_batch, place, h))[column] = uint16_t(two);
      }
    }
    __syncwarp();
    if (lane == 0 && a.given(Role::lse)) *a.row<float>(Role::lse, at.seq.q_batch, place, h) = end.lse;
  }
};

template <class T, int Dim, int DimV, int TileQ, int TileK, int Warps, bool WithOptions, int BlocksPerSm>
__global__ void __launch_bounds__(Warps * 32, BlocksPerSm) forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Place place;
  __shared__ int2 seen[TileQ];
  Forward<T, Dim, DimV, TileQ, TileK, Warps, WithOptions> f(params, shared, place, seen);
  if (threadIdx.x == 0) f.find_place();
  __syncthreads();
  if (place.rows > 0) f.run();
}

}  // namespace attune::sm80
