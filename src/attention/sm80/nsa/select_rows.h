// SPDX-License-Identifier: Apache-2.0
// Code shared by the selection kernels of NSA. A CTA has 128 rows: the heads of a token side by side (padded to a power
// of two), and as many tokens as fit. Queries stay in registers; tiles of 64 compressed keys alternate between two
// buffers of shared memory.
#pragma once
#include "attention/gpu/byte_rows.h"
#include "core/divisor.h"
#include "core/variant/nsa.h"
#include "core/softmax.h"
#include "machine/sm80/memory.h"

namespace attune::sm80 {

constexpr int kSelectRows = 128, kSelectKeys = 64, kSelectWarps = 4, kSelectThreads = kSelectWarps * 32;
constexpr int kSelectRowsOfWarp = kSelectRows / kSelectWarps;
// CTAs per SM, limited by registers.
constexpr int select_blocks(int dim) { return dim <= 128 ? 3 : 2; }
constexpr int kLseTiles = 4;  // key tiles per partial log-sum-exp; partial results are combined in order

struct SelectParams {
  ByteRows q, k, lse, blocks;  // lse f32, blocks i32 [batch, token, group, n]
  Divisor token_blocks;        // per (sequence, group)
  Divisor splits, groups;
  Divisor columns;             // compressed tokens per selection block: s / d
  Divisor d, s;                // of nsa
  Divisor each;                // blocks that a tile completes, if constant; otherwise by 0
  int32_t taps, most_tap;      // filter of nsa: number of taps, and the largest
  int32_t first_tap;           // of block 0
  int32_t group;               // heads
  int32_t shift;               // log2 of the rows per token
  int32_t ring;                // columns kept, a power of two
  int32_t capacity;            // of a list
  int32_t kept;                // pending block scores per token
  int32_t chunks;              // partial log-sum-exps, upper bound
  bool own_lse;                // lse was computed here: packed by the problem's bounds, [batch, token, head]
  bool aligned16;              // rows of q and k allow 16-byte reads; used for f32 only
  float scale;                 // includes log2(e)
  Nsa nsa;
  Problem problem;
  DenseArgs args;
  uint64_t* candidates;        // [batch][group][token][split][capacity], 0 if a split has fewer; only if splits > 1
  float2* partial_lse;         // [batch][head][token][chunk]; only if splits > 1
  uint32_t* arrived;           // [batch][group][token block], 0 before and after

  __host__ __device__ int tokens() const { return kSelectRows >> shift; }  // per CTA
  // Rings per CTA: one per token, or one per warp if a token has more rows than a warp.
  __host__ __device__ int rings() const { return tokens() > kSelectWarps ? tokens() : kSelectWarps; }
  __device__ bool is_shared_ring() const { return shift > 5; }
};

// Lives in shared memory: it is read at the edges of the loop, where registers are scarce.
struct SelectPlace {
  SelectSequence seq;
  int b, head, split, block;
  int first, count;       // tokens
  int first_tile, tiles;  // of this split
  int warm_tile;          // start of the walk, early enough that the first blocks find their columns
};

// The position of a CTA, its splits and its rows: everything independent of how scores are computed.
struct SelectBase {
  static constexpr int kM = 2, kN = kSelectKeys / 8;  // fragments of a warp's scores: rows / 16, keys / 8

  const SelectParams& x;
  const Nsa& nsa;
  const int lane, warp;

  __device__ explicit SelectBase(const SelectParams& params)
      : x(params), nsa(params.nsa), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {}

  __device__ SelectPlace find_place() const {
    SelectPlace at;
    uint32_t n = blockIdx.x;
    // Longest first.
    at.block = int(x.token_blocks.by - 1 - x.token_blocks.rest(n)), n = x.token_blocks.divide(n);
    at.split = int(x.splits.rest(n)), n = x.splits.divide(n);
    at.head = int(x.groups.rest(n)), at.b = int(x.groups.divide(n));
    at.seq = select_sequence(x.problem, x.args, nsa, at.b);
    at.first = at.block * x.tokens();
    at.count = clamp(at.seq.len_q - at.first, 0, x.tokens());
    return at;
  }
  // Position of a token, -1 before the first. As in Nsa, but with divisors prepared on the host.
  __device__ int position(const SelectPlace& at, int token) const {
    const int64_t t = at.seq.position + at.first + token;
    return t < 0 ? -1 : int(t);
  }
  __device__ int own(int t) const { return int(x.s.divide(uint32_t(t))); }
  __device__ int seen_from(const SelectPlace& at, int t) const {
    return t + 1 < nsa.l ? 0 : min(int(x.d.divide(uint32_t(t + 1 - nsa.l))) + 1, at.seq.keys);
  }
  // Divides the tiles over the splits in multiples of `multiple`; the first splits get one multiple more.
  __device__ void split_tiles(SelectPlace& at, int64_t columns, int warm, int multiple) const {
    const int all = int((columns + kSelectKeys * multiple - 1) / (kSelectKeys * multiple));
    const int each = int(x.splits.divide(all)), more = int(x.splits.rest(all));
    at.first_tile = (at.split * each + min(at.split, more)) * multiple;
    at.tiles = (each + (at.split < more)) * multiple;
    at.warm_tile = max(0, at.first_tile - warm);
  }

  // Row layout of a CTA: token row >> shift, head row & (2^shift - 1).
  __device__ int token_of(int row) const { return row >> x.shift; }
  __device__ int head_of(int row) const { return row & ((1 << x.shift) - 1); }
  __device__ bool there(const SelectPlace& at, int row) const {
    return token_of(row) < at.count && head_of(row) < x.group;
  }
  __device__ int row_of(int m, int half) const { return warp * kSelectRowsOfWarp + m * 16 + half * 8 + lane / 4; }

  __device__ float* lse_of(const SelectPlace& at, int row) const {
    const int token = at.first + token_of(row), head = at.head * x.group + head_of(row);
    return reinterpret_cast<float*>(x.own_lse ? x.lse.row(at.b, token, head)
                                              : x.lse.row(at.seq.batch, at.seq.first + token, head));
  }
  // Called by all threads: true if this split of the token block arrived last and sees the results of the others.
  __device__ bool is_last(int64_t counter) const {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      last = atomicAdd(x.arrived + counter, 1) + 1 == x.splits.by;
      if (last) x.arrived[counter] = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
  }
};

// Scores of 16-bit queries and keys on tensor cores.
template <class T, int Dim>
struct SelectRows : SelectBase {
  using TileOfQ = SharedTile<kSelectRows, Dim>;
  using TileOfK = SharedTile<kSelectKeys, Dim>;
  static_assert(2 * TileOfK::kBytes == TileOfQ::kBytes);  // queries are loaded through the key buffers
  static constexpr int kSteps = Dim / 16;
  __host__ __device__ static int tile_bytes(const SelectParams&) { return TileOfQ::kBytes; }  // shared memory

  const uint32_t shared;
  FragmentA q[kM][kSteps];

  __device__ SelectRows(const SelectParams& params, char* memory)
      : SelectBase(params), shared(shared_address(memory)) {}

  __device__ void load_q(const SelectPlace& at) {
    constexpr int kChunks = TileOfQ::kPanels * 8;
    for (int n = threadIdx.x; n < kSelectRows * kChunks; n += kSelectThreads) {
      const int row = n / kChunks, column = n % kChunks * 8;
      const bool copied = column < x.problem.dim_qk && there(at, row);
      const char* from = x.q.data;
      if (copied)
        from = x.q.row(at.seq.batch, at.seq.first + at.first + token_of(row), at.head * x.group + head_of(row));
      copy16(shared + TileOfQ::offset(row, column), from + (copied ? column * 2 : 0), copied);
    }
    close_group();
    wait_groups<0>();
    __syncthreads();
    const uint32_t first = shared + TileOfQ::offset(warp * kSelectRowsOfWarp + lane % 16, lane / 16 * 8);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int k = 0; k < kSteps; ++k) load_matrix4(q[m][k].r, TileOfQ::further(first, k * 16) + m * 16 * 128);
    __syncthreads();
  }
  __device__ uint32_t place_of(int tile) const { return shared + tile % 2 * TileOfK::kBytes; }
  __device__ void load_keys(const SelectPlace& at, int tile) const {
    constexpr int kStep = kSelectThreads / 8;  // rows at once: eight lanes cover 64 columns of a row
    const int row = threadIdx.x / 8, first = tile * kSelectKeys, count = at.seq.keys - first;
    const char* from = x.k.row(at.seq.k_batch, at.seq.k_first + first + row, at.head) + threadIdx.x % 8 * 16;
    const uint32_t to = place_of(tile) + TileOfK::offset(row, threadIdx.x % 8 * 8);
#pragma unroll
    for (int n = 0; n < kSelectKeys / kStep; ++n, from += kStep * x.k.seq)
#pragma unroll
      for (int panel = 0; panel < TileOfK::kPanels; ++panel) {
        const bool copied = row + n * kStep < count && panel * 64 + int(threadIdx.x % 8) * 8 < x.problem.dim_qk;
        copy16(to + (panel * kSelectKeys + n * kStep) * 128, copied ? from + panel * 128 : x.k.data, copied);
      }
    close_group();
  }

  // s = q k^T. Fragments of k are loaded a few steps before their products.
  __device__ void scores(Accumulator (&s)[kM][kN], int tile) const {
    constexpr int kAhead = 3, kPairs = kN / 2, kAll = kSteps * kPairs;
    const uint32_t first = place_of(tile) + TileOfK::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    uint32_t keys[kAhead][4];
    const auto load = [&](int step) {
      load_matrix4(keys[step % kAhead], TileOfK::further(first, step / kPairs * 16) + step % kPairs * 16 * 128);
    };
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load(step);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n) s[m][n] = {};
#pragma unroll
    for (int step = 0; step < kAll; ++step) {
      const int k = step / kPairs, n = step % kPairs * 2;
      const uint32_t(&two)[4] = keys[step % kAhead];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(s[m][n], q[m][k], {two[0], two[1]});
        multiply_add<T>(s[m][n + 1], q[m][k], {two[2], two[3]});
      }
      if (step + kAhead < kAll) load(step + kAhead);
    }
  }
};

}  // namespace attune::sm80
