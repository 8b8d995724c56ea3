// SPDX-License-Identifier: Apache-2.0
// Code shared by the f32 kernels of both passes: call parameters, the rows that a CTA owns, tiles of floats, and the
// two products S = X Y^T and A += W Y. Options are evaluated at run time: f32 serves checks and small models, and a
// second set of kernels would cost every build more than it gains.
#pragma once
#include "attention/sm80/block_tiles.h"
#include "core/score.h"
#include "machine/sm80/tf32.h"

namespace attune::sm80 {

struct F32Call {
  Problem problem;
  DenseArgs args;
  bool uniform;     // all sequences equal `seq` except for the batch index: no lengths in tensors
  Sequence seq;
  bool aligned16;   // rows of all tensors start at multiples of 16 bytes, as do their lengths: 16-byte copies
  bool options;     // general score policy
  int tiles;        // tiles of one sequence that CTAs own: of queries, or of keys in the dK/dV kernel
  int first_batch;  // sequence of CTA 0
};

__device__ inline Sequence sequence_of(const F32Call& x, int b) {
  if (!x.uniform) return sequence(x.problem, x.args, b);
  Sequence s = x.seq;
  s.q_batch = s.k_batch = b;
  return s;
}

// The query rows that a CTA owns, and the key tiles they see. Lives in shared memory; one thread fills it in.
template <int TileQ, int TileK>
struct QueryRows {
  Sequence seq;
  int b, head, head_kv;
  int first, rows;
  int first_tile, tiles;      // key tiles
  int open_first, open_last;  // range of keys that every row sees

  __device__ BandWalk walk() const { return {seq.band, seq.len_k, TileK}; }
  __device__ BlockList list(const F32Call& x) const {
    return {x.problem.mask.blocks, x.args.row<const int32_t>(Role::block_begin, b, 0, head),
            x.args.row<const int32_t>(Role::block_column)};
  }
  __device__ static int tiles_per_block(const Blocks& size) { return (size.k + TileK - 1) / TileK; }

  __device__ void find(const F32Call& x) {
    const Problem& p = x.problem;
    uint32_t n = blockIdx.x;
    const int own = x.tiles - 1 - int(n % x.tiles);  // causal: longest first
    n /= x.tiles;
    head = int(n % p.heads_q), b = int(n / p.heads_q), head_kv = head / (p.heads_q / p.heads_kv);
    seq = sequence_of(x, b);
    const Blocks size = p.mask.blocks;
    const auto [from, until] = tile_range(own, TileQ, size.q);
    first = clamp(from, 0, seq.len_q), rows = clamp(until, 0, seq.len_q) - first;
    if (rows <= 0) return;
    const int end = first + rows - 1;
    open_first = walk().first_key(end), open_last = walk().last_key(first);
    first_tile = size.q ? 0 : walk().first_key(first) / TileK;
    tiles = size.q ? list(x).count(first / size.q) * tiles_per_block(size)
                   : max(0, int(ceil_div(walk().last_key(end), TileK)) - first_tile);
  }
  __device__ Tile tile(const F32Call& x, int n) const {
    int64_t from = int64_t(first_tile + n) * TileK, until = from + TileK;
    if (const Blocks size = x.problem.mask.blocks; size.q) {
      const int64_t begin = int64_t(list(x).key_block(first / size.q, n / tiles_per_block(size))) * size.k;
      from = begin + n % tiles_per_block(size) * TileK, until = min(from + TileK, begin + size.k);
    }
    const int end = clamp(until, 0, seq.len_k), start = clamp(from, 0, end);
    return {start, end, open_first > start || open_last < start + TileK || end < start + TileK};
  }
  // Half-open range [x, y) of the keys that row r sees.
  __device__ int2 seen(int r) const {
    return r < rows ? int2{walk().first_key(first + r), walk().last_key(first + r)} : int2{INT32_MAX, 0};
  }
};

// Copies `count` rows to shared memory by cp.async; missing rows and columns become 0. `row_at(r)` returns the address
// of row r; `anywhere` is a valid address that is never read.
template <class Layout, int kThreads, class Row>
__device__ inline void load_tile(uint32_t tile, int dim, int count, bool aligned16, const void* anywhere, Row row_at) {
  constexpr int kChunks = Layout::kColumns / 4;
  const auto each = [&](int n, auto copy) {
    // `there`: columns left in the row.
    const int row = n / kChunks, column = n % kChunks * 4, there = row < count ? dim - column : 0;
    const float* from = there > 0 ? row_at(row) + column : static_cast<const float*>(anywhere);
    copy(tile + Layout::offset(row, column), from, there);
  };
  static_assert(Layout::kRows * kChunks % kThreads == 0);
  if (aligned16) {
#pragma unroll 4
    for (int n = 0; n < Layout::kRows * kChunks / kThreads; ++n)
      each(threadIdx.x + n * kThreads,
           [](uint32_t to, const float* from, int there) { copy16(to, from, there > 0); });
  } else {
#pragma unroll 1
    for (int n = threadIdx.x; n < Layout::kRows * kChunks; n += kThreads)
      each(n, [](uint32_t to, const float* from, int there) {
#pragma unroll 1
        for (int e = 0; e < 4; ++e) copy4(to + e * 4, from + (e < there ? e : 0), e < there);
      });
  }
}
// Rounds the part of a tile that this thread loaded, in place. Call after waiting for the loads and before load_rows
// reads the tile.
template <bool three, class Layout, int kThreads>
__device__ inline void round_loaded(uint32_t tile) {
  constexpr int kChunks = Layout::kColumns / 4;
  if constexpr (!three)
    for (int n = threadIdx.x; n < Layout::kRows * kChunks; n += kThreads)
      round_shared16(tile + Layout::offset(n / kChunks, n % kChunks * 4));
}
template <class Layout, int kThreads>
__device__ inline void load_queries(const F32Call& x, Role role, const Sequence& s, int head, int first, int count,
                                    uint32_t tile) {
  const Tensor& t = x.args[role];
  const float* from = x.args.row<const float>(role, s.q_batch, s.q_first + int64_t(first), head);
  load_tile<Layout, kThreads>(tile, t.extent.dim, count, x.aligned16, t.data,
                              [&](int r) { return from + r * t.stride.seq; });
}
template <class Layout, int kThreads>
__device__ inline void load_keys(const F32Call& x, Role role, const Sequence& s, int b, int head_kv, int first,
                                 int count, uint32_t tile) {
  const Tensor& t = x.args[role];
  const bool paged = x.problem.keys == KeySource::paged;
  const PagedRows<const float> pages(x.problem, x.args, role, s, b, head_kv);
  const LinearRows<const float> lines(x.problem, x.args, role, s, b, head_kv);
  load_tile<Layout, kThreads>(tile, t.extent.dim, count, x.aligned16, t.data,
                              [&](int r) { return paged ? pages.row(first + r) : lines.row(first + r); });
}

// The layouts of the two tiles of a product.
template <class X_, class Y_>
struct TilePair {
  using X = X_;
  using Y = Y_;
};

// s = x y^T: the warp's rows of one tile, starting at `row`, times kN * 8 rows of another tile.
template <bool three, class Tiles, int kM, int kN>
__device__ inline void dot_rows(Accumulator (&s)[kM * kN], uint32_t x, uint32_t y, int row, int lane) {
  using X = typename Tiles::X;
  using Y = typename Tiles::Y;
  // tf32x3: the partial sums of kAtOnce fragments fit in registers beside the sums; kSpan is the number of terms of a
  // partial sum. It is small, because an error in a score is an error in its exponential and grows with the score.
  constexpr int kAtOnce = three && kM * kN > 8 ? kN / 2 : kN, kSpan = three ? 32 : X::kColumns;
  constexpr int kTogether = three ? 2 : 4;
  static_assert(X::kColumns == Y::kColumns && kAtOnce % 2 == 0);
  const uint32_t x_first = x + X::offset(row + lane % 16, lane / 16 * 4);
  const uint32_t y_first = y + Y::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 4);
  const auto columns = [&](Accumulator(&to)[kM * kAtOnce], int first, int from) {
#pragma unroll
    for (int n = 0; n < kM * kAtOnce; ++n) to[n] = {};
#pragma unroll kTogether
    for (int k = from; k < from + kSpan; k += 8) {
      OperandA<three> one[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) load_rows<three>(one[m], X::further(x_first, k) + m * 16 * 128);
#pragma unroll
      for (int n = 0; n < kAtOnce; n += 2) {
        OperandB<three> two[2];
        load_columns<three>(two, Y::further(y_first, k) + (first + n) * 8 * 128);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<three>(to[m * kAtOnce + n], one[m], two[0]);
          multiply_add<three>(to[m * kAtOnce + n + 1], one[m], two[1]);
        }
      }
    }
  };
  if constexpr (three) {
#pragma unroll
    for (int n = 0; n < kM * kN; ++n) s[n] = {};
#pragma unroll
    for (int first = 0; first < kN; first += kAtOnce)
#pragma unroll 1
      for (int k = 0; k < X::kColumns; k += kSpan) {
        Accumulator partial[kM * kAtOnce];
        columns(partial, first, k);
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int n = 0; n < kAtOnce; ++n) add(s[m * kN + first + n], partial[m * kAtOnce + n]);
      }
  } else {
    columns(s, 0, 0);
  }
}

// acc += w y: weights of the warp's rows times the kN * 8 rows of a tile. tf32x3: a partial sum covers one tile.
template <bool three, class Y, int kM, int kN>
__device__ inline void add_rows(Accumulator (&acc)[kM][Y::kColumns / 8], const Accumulator (&w)[kM * kN], uint32_t y,
                                int lane) {
  const uint32_t even = y + Y::offset(lane % 4 * 2, lane / 4), odd = y + Y::offset(lane % 4 * 2 + 1, lane / 4);
  constexpr int kColumns = Y::kColumns / 8, kSpan = three ? 2 : kColumns;  // fragments at once
#pragma unroll
  for (int first = 0; first < kColumns; first += kSpan) {
    Accumulator partial[three ? kM : 1][three ? kSpan : 1] = {};
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      OperandA<three> one[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) weights<three>(one[m], w[m * kN + k]);
#pragma unroll
      for (int d = 0; d < kSpan; ++d) {
        OperandB<three> two;
        const int column = (first + d) * 8;
        load_transposed<three>(two, Y::further(even, column) + k * 1024, Y::further(odd, column) + k * 1024);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          if constexpr (three) multiply_add<three>(partial[m][d], one[m], two);
          else multiply_add<three>(acc[m][d], one[m], two);
        }
      }
    }
    if constexpr (three) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int d = 0; d < kSpan; ++d) add(acc[m][first + d], partial[m][d]);
    }
  }
}

// Calls f(n, e) for every element e of every fragment n. The arrays are rotated once around, so the current element is
// always element 0 of fragment 0. Long code, such as that of all options, is therefore instantiated once instead of per
// element, and the arrays stay in registers.
template <int N, class F, class... Array>
__device__ inline void each_rotating(F f, Array&... arrays) {
  const auto rotate_one = [](Accumulator& x) { x = {{x.c[1], x.c[2], x.c[3], x.c[0]}}; };
  const auto rotate_all = [](Accumulator(&s)[N]) {
    const Accumulator first = s[0];
#pragma unroll
    for (int n = 0; n + 1 < N; ++n) s[n] = s[n + 1];
    s[N - 1] = first;
  };
#pragma unroll 1
  for (int n = 0; n < N; ++n) {
#pragma unroll 1
    for (int e = 0; e < 4; ++e) f(n, e), (rotate_one(arrays[0]), ...);
    (rotate_all(arrays), ...);
  }
}

}  // namespace attune::sm80
