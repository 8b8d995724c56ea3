// SPDX-License-Identifier: Apache-2.0
// Pre- and postprocessing of the backward kernels that own keys (sm80/backward/kernel.h): their parameters, the kernels
// before and after them, and the derivative of one pair.
#pragma once
#include <algorithm>

#include "attention/gpu/list_order.h"
#include "attention/tile/row_statistics.h"
#include "attention/tile/transposed_tile.h"
#include "core/large_logit.h"
#include "core/score.h"
#include "machine/sm80/memory.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm80 {

// dS is stored in 16 bits, multiplied by `in`, a power of two; out = 1 / in.
struct Kept { float in = 1.f, out = 1.f; };

struct BackwardParams {
  Problem problem;
  DenseArgs args;
  bool uniform;      // all sequences equal `seq` except for the batch index: no lengths in tensors
  Sequence seq;
  float2* rows;      // [batch][head][padded]: lse_of_weights() in base 2, +inf if a row sees no key; delta * kept.in
  float* dq;         // [batch][head][padded / 16][Dim / 8] fragments, or transposed; null if the dK/dV kernel skips dQ
  int* tickets;      // null, or deterministic: [0] CTAs started, [1 + padded row / 32] CTAs that added to the tile
  int padded;        // rows per head, a multiple of 64
  int dq_pitch;      // Dim
  int group;         // query heads per KV head
  int tiles;         // key tiles per sequence (query tiles in the dQ kernel)
  int first_batch;   // sequence of CTA 0
  float scale;       // of dot products
  Kept kept;
  bool shared_keys;  // sequences may share keys: gradients are added to the existing values
  ListOrder order;   // order of the CTAs of the dK/dV kernel; prepare computes it
  int* disjoint;     // null, or a flag: no two lists share entries, so the list by key block of this run is valid
  bool running;      // the run accumulates: gradients are f32 and added to the previous ones
  uint64_t*
      large_logits;  // null, or receives `launch` from prepare if a row has large logits (core/large_logit.h)
  uint64_t launch;
  bool zero_large_logits;  // rows with a large log-sum-exp have 0 in `rows`: kernels read it from lse
  bool transposed;         // dQ sums of a head form one transposed tile, and rows are paired; implies `uniform`
  int* taken;              // null, or `counts` counters of the next kernel, which prepare clears
  int counts;
  bool stores_first;       // the next kernel stores every query tile of dQ before adding to it: no clear needed
  int prepared;            // query heads that prepare handles; 0: all. The next kernel handles the others
};

constexpr int kRowsOfPrepare = 64, kTicketRows = 32;

__device__ inline Sequence sequence_of(const BackwardParams& x, int b) {
  if (!x.uniform) return sequence(x.problem, x.args, b);
  Sequence s = x.seq;
  s.q_batch = s.k_batch = b;
  return s;
}

// The n-th CTA of prepare and finish: rows of one head.
struct RowBlock {
  int first, head, batch;
  int64_t index;  // of its first row, in the padded rows of all heads
  __device__ RowBlock(const BackwardParams& x, uint32_t n) {
    const uint32_t blocks = x.padded / kRowsOfPrepare;
    first = int(n % blocks) * kRowsOfPrepare, n /= blocks;
    index = int64_t(n) * x.padded + first;
    head = int(n % x.problem.heads_q), batch = int(n / x.problem.heads_q);
  }
};

// Stores a CTA's sums [count][Dim] from shared memory to f32 rows that no other CTA writes, or adds them. Four values
// are read before one is written; otherwise each read waits for the previous write.
template <int Dim, int kThreads>
__device__ inline void store_sums(const float* sums, float* rows, int64_t stride, int count, int dim, bool running) {
  constexpr int kChunks = Dim / 4, kAtOnce = 4;
#pragma unroll 1
  for (int first = int(threadIdx.x); first < count * kChunks; first += kAtOnce * kThreads) {
    float4 was[kAtOnce] = {}, *to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int key = (first + i * kThreads) / kChunks, column = (first + i * kThreads) % kChunks * 4;
      to[i] = key < count && column < dim ? reinterpret_cast<float4*>(rows + key * stride + column) : nullptr;
      if (running && to[i]) was[i] = *to[i];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!to[i]) continue;
      const float4 more = reinterpret_cast<const float4*>(sums)[first + i * kThreads];
      *to[i] = {was[i].x + more.x, was[i].y + more.y, was[i].z + more.z, was[i].w + more.w};
    }
  }
}

// Lists that are stored one after another share no entries. Called by one CTA.
__device__ inline void find_disjoint(const BackwardParams& x) {
  const Tensor& t = x.args[Role::block_begin];
  const int rows = int(ceil_div(x.problem.len_q, x.problem.mask.blocks.q)), lists = t.extent.batch * t.extent.head;
  bool disjoint = true;
  for (int n = threadIdx.x; n < lists; n += blockDim.x) {
    const int32_t* begin = x.args.row<const int32_t>(Role::block_begin, n / t.extent.head, 0, n % t.extent.head);
    for (int row = 0; row < rows; ++row) disjoint &= begin[row] <= begin[row + 1];
    if (n + 1 == lists) continue;
    const int next = n + 1;
    disjoint &= begin[rows] <=
             *x.args.row<const int32_t>(Role::block_begin, next / t.extent.head, 0, next % t.extent.head);
  }
  const bool all = __syncthreads_and(disjoint);
  if (threadIdx.x == 0) *x.disjoint = all;
}

// ordered: CTA 0 computes the order of the CTAs that own keys.
template <class T, bool ordered>
__global__ void __launch_bounds__(256) prepare_kernel(const __grid_constant__ BackwardParams x) {
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  wait_for_previous();
  admit_next();
  if constexpr (ordered) {
    if (blockIdx.x == 0) {
      find_order<256>(x.order, p, a);
      if (x.disjoint) find_disjoint(x);
      return;
    }
  }
  const RowBlock at(x, blockIdx.x - ordered);
  const Sequence seq = sequence_of(x, at.batch);
#pragma unroll
  for (int r = threadIdx.x / 8; r < kRowsOfPrepare; r += 32) {
    const int i = at.first + r;
    const bool there = i < seq.len_q;
    float sum = 0.f;
    if (there) {
      const T* out = a.row<const T>(Role::out, seq.q_batch, seq.q_first + int64_t(i), at.head);
      const T* d_out = a.row<const T>(Role::d_out, seq.q_batch, seq.q_first + int64_t(i), at.head);
#pragma unroll 4
      for (int d = threadIdx.x % 8 * 8; d < p.dim_v; d += 64) {
        const uint4 one = *reinterpret_cast<const uint4*>(out + d), other = *reinterpret_cast<const uint4*>(d_out + d);
        const uint32_t u[4] = {one.x, one.y, one.z, one.w}, v[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 f = unpack<T>(u[e]), g = unpack<T>(v[e]);
          sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
        }
      }
    }
    for (int n = 1; n < 8; n *= 2) sum += __shfl_xor_sync(~0u, sum, n);
    if (threadIdx.x % 8) continue;
    float2 row{INFINITY, 0.f};
    if (there) {
      const float lse = *a.row<const float>(Role::lse, seq.q_batch, seq.q_first + int64_t(i), at.head);
      if (a.given(Role::d_lse)) sum -= *a.row<const float>(Role::d_lse, seq.q_batch, seq.q_first + int64_t(i), at.head);
      if (lse != -INFINITY) row = {lse_of_weights(lse), sum * x.kept.in};
      if (x.large_logits && is_large_logit(row.x)) {
        *x.large_logits = x.launch;
        if (x.zero_large_logits) row.x = 0.f;
      }
    }
    store_statistics(x.rows, at.index + r, x.transposed, row);
  }
  if (x.taken && at.index == 0)
    for (int n = threadIdx.x; n < x.counts; n += 256) x.taken[n] = 0;
  if (x.tickets && threadIdx.x < kRowsOfPrepare / kTicketRows)
    x.tickets[1 + at.index / kTicketRows + threadIdx.x] = 0, x.tickets[0] = 0;
  if (!x.dq || x.stores_first || (at.first >= seq.len_q && !x.transposed)) return;  // transposed rows are interleaved
  float4* to = reinterpret_cast<float4*>(x.dq + at.index * x.dq_pitch);
  for (int n = threadIdx.x; n < kRowsOfPrepare * x.dq_pitch / 4; n += 256) to[n] = {};
}

// Stores eight adjacent columns of a row to a tensor of T or f32; `add`: adds to the existing values, in f32.
template <class T>
__device__ inline void store8(const Tensor& t, int64_t b, int64_t s, int64_t h, int column, const float (&x)[8],
                              bool add) {
  if (t.dtype == DType::f32) {
    float4* to = reinterpret_cast<float4*>(view<float>(t).row(b, s, h) + column);
    const float4 low = add ? to[0] : float4{}, high = add ? to[1] : float4{};
    to[0] = {low.x + x[0], low.y + x[1], low.z + x[2], low.w + x[3]};
    to[1] = {high.x + x[4], high.y + x[5], high.z + x[6], high.w + x[7]};
  } else {
    *reinterpret_cast<uint4*>(view<T>(t).row(b, s, h) + column) = {pack<T>(x[0], x[1]), pack<T>(x[2], x[3]),
                                                                   pack<T>(x[4], x[5]), pack<T>(x[6], x[7])};
  }
}

// Converts dQ from fragments to its tensor: a warp takes 16 rows of 32 columns. The last rows, still in cache, come
// first.
template <class T, bool transposed>
__global__ void __launch_bounds__(256) finish_kernel(const __grid_constant__ BackwardParams x) {
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  const RowBlock at(x, gridDim.x - 1 - blockIdx.x);
  const Sequence seq = sequence_of(x, at.batch);
  wait_for_previous();
  // A replayed graph uses the same launch number again.
  if (x.large_logits && blockIdx.x == 0 && threadIdx.x == 0) *x.large_logits = 0;
  if (at.first >= seq.len_q) return;
  constexpr int kPitch = 36;
  __shared__ __align__(16) float all[8][16 * kPitch];
  const float scale = x.scale * x.kept.out;
  const int lane = threadIdx.x % 32, across = x.dq_pitch / 32;
  float* const tile = all[threadIdx.x / 32];
  for (int n = threadIdx.x / 32; n < kRowsOfPrepare / 16 * across; n += 8) {
    const int row0 = n / across * 16, column0 = n % across * 32;
    Accumulator fragments[4];
    if constexpr (transposed) {
      const TransposedTile sums{x.padded};
      const int query = at.first + row0;
      const float* from = x.dq + (at.index - at.first) * x.dq_pitch;
#pragma unroll
      for (int f = 0; f < 4; ++f)
        fragments[f] =
            read_fragment(from + sums.fragment(query + f % 2 * 8, column0 + f / 2 * TransposedTile::kColumns), lane);
#pragma unroll
      for (int f = 0; f < 4; ++f)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          tile[(f % 2 * 8 + sums.query(lane, e)) * kPitch + f / 2 * TransposedTile::kColumns + sums.column(lane, e)] =
              fragments[f].c[e] * scale;
    } else {
      const float* from = x.dq + (at.index + row0) * x.dq_pitch + column0 / 8 * kFragment;
#pragma unroll
      for (int f = 0; f < 4; ++f) fragments[f] = read_fragment(from + f * kFragment, lane);
#pragma unroll
      for (int f = 0; f < 4; ++f)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(tile + (half * 8 + lane / 4) * kPitch + f * 8 + lane % 4 * 2) = {
              fragments[f].c[2 * half] * scale, fragments[f].c[2 * half + 1] * scale};
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4, column = lane % 4 * 8;
      const float4* two = reinterpret_cast<const float4*>(tile + row * kPitch + column);
      const float4 low = two[0], high = two[1];
      if (at.first + row0 + row < seq.len_q && column0 + column < p.dim_qk)
        store8<T>(a[Role::dq], seq.q_batch, seq.q_first + int64_t(at.first + row0 + row), at.head, column0 + column,
                  {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, x.running);
    }
    __syncwarp();
  }
}

// d_sinks, one head per CTA; sums have a fixed order.
static __global__ void __launch_bounds__(256) sink_kernel(const __grid_constant__ BackwardParams x) {
  const Problem& p = x.problem;
  const int h = blockIdx.x;
  wait_for_previous();
  const float sink = *x.args.row<const float>(Role::sinks, 0, 0, h) * kLog2e;
  float sum = 0.f;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence_of(x, b);
    for (int i = threadIdx.x; i < seq.len_q; i += 256) {
      const float2 row = load_statistics(x.rows, (int64_t(b) * p.heads_q + h) * x.padded + i, x.transposed);
      const float lse =
          lse_of_weights(*x.args.row<const float>(Role::lse, seq.q_batch, seq.q_first + int64_t(i), h));
      if (lse != INFINITY) sum -= exp2f(exponent_of_weight(sink, lse)) * row.y;
    }
  }
  __shared__ float sums[256];
  sums[threadIdx.x] = sum;
  for (int n = 128; n; n /= 2) {
    __syncthreads();
    if (threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
  }
  if (threadIdx.x > 0) return;
  float* to = x.args.row<float>(Role::d_sinks, 0, 0, h);
  const float all = sums[0] * x.kept.out;
  *to = x.running ? *to + all : all;
}

// Sets the rows of a tensor to 0; bytes between them are not touched.
static __global__ void __launch_bounds__(256) clear_kernel(const __grid_constant__ Tensor t) {
  const int64_t rows = int64_t(t.extent.batch) * t.extent.seq * t.extent.head;
  const int bytes = t.extent.dim * size_of(t.dtype), words = bytes / 16;
  for (int64_t n = blockIdx.x * 8ll + threadIdx.x / 32; n < rows; n += gridDim.x * 8ll) {
    const int64_t h = n % t.extent.head, s = n / t.extent.head % t.extent.seq, b = n / t.extent.head / t.extent.seq;
    char* to = row_address(t, b, s, h);
    const bool whole = bytes % 16 == 0 && uintptr_t(to) % 16 == 0;
    if (whole) for (int w = threadIdx.x % 32; w < words; w += 32) reinterpret_cast<uint4*>(to)[w] = {};
    else for (int w = threadIdx.x % 32; w < bytes / 2; w += 32) reinterpret_cast<uint16_t*>(to)[w] = 0;
  }
}
// CTAs of clear_kernel.
inline int64_t clear_blocks(const Tensor& t) {
  const int64_t rows = int64_t(t.extent.batch) * t.extent.seq * t.extent.head;
  return std::min<int64_t>(ceil_div(rows, 8), 65535);
}

// One pair without options: computes the weight that multiplies dO and the scaled dS from a dot product and dP.
struct Pair { float p, ds; };
__device__ inline Pair differentiate(float scale, Kept kept, float dot, float dp, float2 row) {
  const float weight = weight_of_large_logit(exp2_fast(fmaf(dot, scale, -row.x)), row.x);
  return {weight, weight * fmaf(dp, kept.in, -row.y)};
}

}  // namespace attune::sm80
