// SPDX-License-Identifier: Apache-2.0
// Textbook attention on a GPU: the kernels between the matrix products. The scores of a KV head of one
// sequence, with its query heads, are [head of the group, query, key] in f32; the softmax replaces them in place by
// weights in the dtype of the inputs, from the start of each row. Copies and sums are in gpu/standard_rows.h.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/large_logit.h"
#include "core/score.h"

namespace attune::standard {

constexpr int kWarpsOfCopy = 8;  // one warp per row

// Parameters shared by the kernels of one chunk of KV heads.
struct Params {
  Problem problem;
  DenseArgs args;
  int64_t first;                       // first KV head of the chunk, over all sequences
  int32_t first_b, first_head;         // its sequence and KV head
  int32_t kv_heads;                    // of the chunk
  int32_t group;                       // query heads per KV head
  int32_t uniform;                     // no lengths in tensors: every sequence is `seq`
  Sequence seq;
  int32_t pitch_s, pitch_qk, pitch_v;  // row pitch in elements: of f32 scores, of packed rows
  int32_t which;                       // of a copy: 0 queries, 1 keys
  float in_ds;                         // the part of the scale folded into dS; the products apply the rest
  int32_t columns;                     // columns of d_bias that a CTA sums: 1, 32 or 256
  float *s, *dp;                       // [KV head][group][len_q][pitch_s]; dp only in a backward
  float* db;                           // terms of d_bias, in the same layout or one per row; null unless rows share one
  char *q, *k, *v, *out;               // packed rows [KV head][group][len_q] and [KV head][len_k]
  char *d_out, *dq, *dk, *dv;          // backward
  float* before;                       // [KV head][group][len_q]: factor of the running output
  float* sink_terms;                   // [batch][head][len_q]: contribution of each row to d_sinks, or null
  int64_t rows;                        // of a copy or a clear
  Role cleared;
};

// Position of a row of the chunk.
struct Row {
  int b, head_kv, h, i;
  Sequence seq;
  Rows keys;  // keys within the band; empty if the query does not exist
};

// Uses 32-bit divisions: 64-bit ones take longer than a row of 512 scores.
__device__ inline Row row_of(const Params& x, uint32_t r) {
  const Problem& p = x.problem;
  Row at;
  at.i = int(r % uint32_t(p.len_q)), r /= uint32_t(p.len_q);
  const int n = int(r % uint32_t(x.group));
  const uint32_t kv_head = uint32_t(x.first_head) + r / uint32_t(x.group);
  at.b = x.first_b + int(kv_head / uint32_t(p.heads_kv)), at.head_kv = int(kv_head % uint32_t(p.heads_kv));
  at.h = at.head_kv * x.group + n;
  if (x.uniform) at.seq = x.seq, at.seq.q_batch = at.seq.k_batch = at.b;
  else at.seq = sequence(p, x.args, at.b);
  at.keys = {0, 0};
  if (at.i < at.seq.len_q) {
    const BandWalk walk{at.seq.band, at.seq.len_k, 1};
    at.keys.first = walk.first_key(at.i), at.keys.last = max(at.keys.first, walk.last_key(at.i));
  }
  return at;
}

// Stores four adjacent elements at once.
__device__ inline void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
__device__ inline void store4(F16* to, float4 x) {
  const __half2 two[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(two);
}
__device__ inline void store4(Bf16* to, float4 x) {
  const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(two);
}
__device__ inline float load(const char* row, DType t, int d) {
  if (t == DType::f32) return reinterpret_cast<const float*>(row)[d];
  return t == DType::f16 ? float(reinterpret_cast<const F16*>(row)[d]) : float(reinterpret_cast<const Bf16*>(row)[d]);
}
__device__ inline void store(char* row, DType t, int d, float x) {
  if (t == DType::f32) reinterpret_cast<float*>(row)[d] = x;
  else if (t == DType::f16) reinterpret_cast<F16*>(row)[d] = F16(x);
  else reinterpret_cast<Bf16*>(row)[d] = Bf16(x);
}

struct Larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
struct Plus { __device__ float operator()(float a, float b) const { return a + b; } };

// Reduces over the CTA in a fixed order; every thread gets the result. `scratch` has one element per warp.
template <int Threads, class Combine>
__device__ float reduce(float x, float* scratch, Combine combine) {
  for (int step = 16; step; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
  if constexpr (Threads == 32) return x;
  __syncthreads();  // `scratch` may still be in use by the previous call
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
  for (int n = 1; n < Threads / 32; ++n) x = combine(x, scratch[n]);
  return x;
}

// A bit per key block in the list of a row's query block, in shared memory. Null if the mask has no list.
__device__ inline BlockList list_of(const Params& x, int b, int h) {
  return {x.problem.mask.blocks, x.args.row<const int32_t>(Role::block_begin, b, 0, h),
          x.args.row<const int32_t>(Role::block_column)};
}
__device__ inline const uint32_t* listed(const Params& x, const Row& at, uint32_t* bits) {
  const Blocks size = x.problem.mask.blocks;
  if (!size.q) return nullptr;
  const int count = int(ceil_div(x.problem.len_k, size.k));
  for (int n = threadIdx.x; n < (count + 31) / 32; n += blockDim.x) bits[n] = 0;
  __syncthreads();
  if (at.i < at.seq.len_q) {
    const BlockList list = list_of(x, at.b, at.h);
    const int row = at.i / size.q, entries = list.count(row);
    for (int n = threadIdx.x; n < entries; n += blockDim.x)
      if (const int block = list.key_block(row, n); block >= 0 && block < count)
        atomicOr(bits + block / 32, 1u << block % 32);
  }
  __syncthreads();
  return bits;
}

// Scores of one row, four at a time. General has options and block lists; Plain has neither.
template <class Score>
struct Logits {
  Score score;
  const Params& call;
  const Row& at;
  const uint32_t* bits;
  int block_k;

  __device__ Logits(const Params& x, const Row& row, const uint32_t* list)
      : score(x.problem, x.args, row.seq, row.b, row.h), call(x), at(row), bits(list),
        block_k(x.problem.mask.blocks.k) {}
  __device__ bool seen(int j) const {
    if (j < at.keys.first || j >= at.keys.last) return false;
    return !bits || (bits[j / block_k / 32] >> (j / block_k % 32) & 1);
  }
  // Logit of a visible key. With block_bias, the list is searched for every key: simple but slow.
  __device__ float logit(float dot, int j) const {
    if constexpr (std::is_same_v<Score, General>) {
      if (score.block_bias) {
        Score mine = score;
        mine.entry = max(0, list_of(call, at.b, at.h).find(at.i / call.problem.mask.blocks.q, j / block_k));
        return mine.logit(dot, at.i, j);
      }
    }
    return score.logit(dot, at.i, j);
  }
  __device__ float operator()(float dot, int j) const { return seen(j) ? logit(dot, j) : -INFINITY; }
};

// Finishes a row: its normalization, its lse, and the factor of the previous result. `Threads` threads share the row.
template <int Threads>
__device__ float end_row(const Params& x, const Row& at, int64_t r, float max, float sum) {
  SoftmaxRow row;
  row.max = max, row.sum = sum;
  RowEnd end(row);
  const int64_t token = at.seq.q_first + at.i;
  float* lse = x.args.row<float>(Role::lse, at.seq.q_batch, token, at.h);
  if (at.i < at.seq.len_q) {
    if (x.problem.has(Option::accumulate)) end.merge_running(*lse);
    if (x.problem.has(Option::sink)) end.merge_sink(*x.args.row<const float>(Role::sinks, 0, 0, at.h));
  }
  if constexpr (Threads == 32) __syncwarp();  // every thread has read lse
  else __syncthreads();
  if (threadIdx.x % Threads == 0) {
    x.before[r] = end.before;
    if (lse && at.i < at.seq.len_q) *lse = end.lse;
  }
  return end.now;
}

__device__ inline float largest(float4 x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }
__device__ inline float total(float4 x) { return (x.x + x.y) + (x.z + x.w); }
__device__ inline float4 weights(float4 l, float reference, float factor) {
  // Not fused with the product that made the logit: the largest logit of a row has exponent 0, however large it is.
  const auto weight = [&](float logit) { return exp2f(__fsub_rn(logit, reference)) * factor; };
  return {weight(l.x), weight(l.y), weight(l.z), weight(l.w)};
}

// Rows per CTA of soften_plain_kernel: a row that fits in one warp needs no barrier.
constexpr int rows_of_block(int threads) { return threads == 32 ? 4 : 1; }

// Converts scores to normalized weights, without options. `Threads` threads share a row and hold 4 * Vectors scores
// each in registers, so the matrix is read once and written once.
template <class T, int Threads, int Vectors>
__global__ void __launch_bounds__(Threads * rows_of_block(Threads))
    soften_plain_kernel(const __grid_constant__ Params x) {
  __shared__ float scratch[Threads / 32];
  const int lane = int(threadIdx.x) % Threads;
  const int64_t r = int64_t(blockIdx.x) * rows_of_block(Threads) + threadIdx.x / Threads;
  if (r >= x.rows) return;
  const Row at = row_of(x, uint32_t(r));
  const float* s = x.s + r * x.pitch_s;
  T* to = reinterpret_cast<T*>(x.s + r * x.pitch_s);
  const float scale = scale_of(x.problem, x.args) * kLog2e;
  const auto logit = [&](float dot, int j) {
    return uint32_t(j - at.keys.first) < uint32_t(at.keys.last - at.keys.first) ? dot * scale : -INFINITY;
  };
  float4 l[Vectors];
#pragma unroll
  for (int n = 0; n < Vectors; ++n) {
    const int j = (n * Threads + lane) * 4;
    l[n] = {0.f, 0.f, 0.f, 0.f};
    if (j < at.keys.last && j + 4 > at.keys.first) l[n] = __ldcs(reinterpret_cast<const float4*>(s + j));
  }
  float top = -INFINITY, sum = 0.f;
#pragma unroll
  for (int n = 0; n < Vectors; ++n) {
    const int j = (n * Threads + lane) * 4;
    l[n] = {logit(l[n].x, j), logit(l[n].y, j + 1), logit(l[n].z, j + 2), logit(l[n].w, j + 3)};
    top = fmaxf(top, largest(l[n]));
  }
  top = reduce<Threads>(top, scratch, Larger());
  const float reference = top == -INFINITY ? 0.f : top;
#pragma unroll
  for (int n = 0; n < Vectors; ++n) {
    l[n] = weights(l[n], reference, 1.f);
    sum += total(l[n]);
  }
  sum = reduce<Threads>(sum, scratch, Plus());
  const float now = end_row<Threads>(x, at, r, top, sum);
#pragma unroll
  for (int n = 0; n < Vectors; ++n) {
    const int j = (n * Threads + lane) * 4;
    if (j < x.problem.len_k) store4(to + j, {l[n].x * now, l[n].y * now, l[n].z * now, l[n].w * now});
  }
}

// The same for rows of any length and with every option, one CTA per row; scores are read twice.
template <class T, class Score, int Threads>
__global__ void __launch_bounds__(Threads) soften_kernel(const __grid_constant__ Params x) {
  extern __shared__ uint32_t bits[];
  __shared__ Row at;
  __shared__ float scratch[Threads / 32];
  const int64_t r = blockIdx.x;
  if (threadIdx.x == 0) at = row_of(x, uint32_t(r));
  __syncthreads();
  float* s = x.s + r * x.pitch_s;
  T* to = reinterpret_cast<T*>(s);
  const Logits<Score> logit(x, at, listed(x, at, bits));
  const int len_k = x.problem.len_k;
  constexpr int kStripe = Threads * 4;
  float top = -INFINITY, sum = 0.f;
  for (int j = at.keys.first / 4 * 4 + int(threadIdx.x) * 4; j < at.keys.last; j += kStripe) {
    const float4 dot = *reinterpret_cast<const float4*>(s + j);
    const float4 l{logit(dot.x, j), logit(dot.y, j + 1), logit(dot.z, j + 2), logit(dot.w, j + 3)};
    store4(s + j, l);
    const float raised = fmaxf(top, largest(l)), reference = raised == -INFINITY ? 0.f : raised;
    sum = sum * exp2f(top - reference) + total(weights(l, reference, 1.f));
    top = raised;
  }
  const float all = reduce<Threads>(top, scratch, Larger()), reference = all == -INFINITY ? 0.f : all;
  sum = reduce<Threads>(sum * exp2f(top - reference), scratch, Plus());
  const float now = end_row<Threads>(x, at, r, all, sum);
  // Weights overwrite scores of the same or an earlier stripe: a stripe is read entirely before any of it is written.
  for (int start = 0; start < len_k; start += kStripe) {
    const int j = start + int(threadIdx.x) * 4;
    float4 w{0.f, 0.f, 0.f, 0.f};
    if (j < at.keys.last && j + 4 > at.keys.first) {
      const float4 l = *reinterpret_cast<const float4*>(s + j);
      w = weights(l, reference, now);
      if (x.problem.has(Option::dropout)) {
        w.x *= logit.score.keep(at.i, j), w.y *= logit.score.keep(at.i, j + 1);
        w.z *= logit.score.keep(at.i, j + 2), w.w *= logit.score.keep(at.i, j + 3);
      }
    }
    __syncthreads();
    if (j < len_k) store4(to + j, w);
  }
}

// Statistics of a backward row: weight = exp2(logit - reference), clamped for large logits (core/large_logit.h);
// d_logit = weight (dp - delta).
struct RowGradient {
  float reference, delta;
  bool empty;  // the row sees no key and has no gradient, or the query does not exist
};

// Computed by the `Threads` threads of a row; also writes the row's contribution to the gradient of its sink.
template <int Threads>
__device__ RowGradient row_gradient(const Params& x, const Row& at, float* scratch) {
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  const int lane = int(threadIdx.x) % Threads;
  const bool there = at.i < at.seq.len_q;
  const int64_t token = at.seq.q_first + at.i;
  const float lse = there ? *a.row<const float>(Role::lse, at.seq.q_batch, token, at.h) : -INFINITY;
  float delta = 0.f;
  if (there) {
    const char* o = row_address(a[Role::out], at.seq.q_batch, token, at.h);
    const char* d_o = row_address(a[Role::d_out], at.seq.q_batch, token, at.h);
    for (int d = lane; d < p.dim_v; d += Threads) delta += load(o, p.dtype.out, d) * load(d_o, p.dtype.out, d);
  }
  delta = reduce<Threads>(delta, scratch, Plus());
  if (there && a.given(Role::d_lse)) delta -= *a.row<const float>(Role::d_lse, at.seq.q_batch, token, at.h);
  const bool empty = lse == -INFINITY;
  if (lane == 0 && x.sink_terms)
    x.sink_terms[(int64_t(at.b) * p.heads_q + at.h) * p.len_q + at.i] =
        empty ? 0.f : -expf(*a.row<const float>(Role::sinks, 0, 0, at.h) - lse) * delta;
  return {lse_of_weights(lse), delta, empty};
}

constexpr int kRowsOfGradients = 8;  // rows per CTA of differentiate_plain_kernel, one warp each

// Converts scores and dp in place to weights and gradients of dot products, without options. One warp per row: it reads
// four stripes of 128 keys of both before it writes, and writes never overtake reads.
template <class T>
__global__ void __launch_bounds__(kRowsOfGradients * 32) differentiate_plain_kernel(const __grid_constant__ Params x) {
  constexpr int kStripes = 4, kWidth = 128;
  const int64_t r = int64_t(blockIdx.x) * kRowsOfGradients + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Row at = row_of(x, uint32_t(r));
  float *s = x.s + r * x.pitch_s, *dp = x.dp + r * x.pitch_s;
  const RowGradient row = row_gradient<32>(x, at, nullptr);
  const float scale = scale_of(x.problem, x.args) * kLog2e;
  const int first = at.keys.first, last = row.empty ? first : at.keys.last, len_k = x.problem.len_k;
  const int mine = int(threadIdx.x) % 32 * 4;
  for (int start = 0; start < len_k; start += kStripes * kWidth) {
    float4 dot[kStripes], d_weight[kStripes];
#pragma unroll
    for (int n = 0; n < kStripes; ++n) {
      const int j = start + n * kWidth + mine;
      dot[n] = d_weight[n] = {0.f, 0.f, 0.f, 0.f};
      if (j >= last || j + 4 <= first) continue;
      dot[n] = __ldcs(reinterpret_cast<const float4*>(s + j));
      d_weight[n] = __ldcs(reinterpret_cast<const float4*>(dp + j));
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kStripes; ++n) {
      const int j = start + n * kWidth + mine;
      if (j >= len_k) continue;
      const auto weight = [&](float x_dot, int key) {
        const float exponent = exponent_of_weight(x_dot * scale, row.reference);
        return uint32_t(key - first) < uint32_t(last - first) ? exp2f(exponent) : 0.f;
      };
      const float4 w{weight(dot[n].x, j), weight(dot[n].y, j + 1), weight(dot[n].z, j + 2), weight(dot[n].w, j + 3)};
      const float4 d = d_weight[n];
      store4(reinterpret_cast<T*>(s) + j, w);
      store4(reinterpret_cast<T*>(dp) + j, {w.x * (d.x - row.delta) * x.in_ds, w.y * (d.y - row.delta) * x.in_ds,
                                            w.z * (d.z - row.delta) * x.in_ds, w.w * (d.w - row.delta) * x.in_ds});
    }
  }
}

// The same with every option, one CTA per row.
template <class T, int Threads>
__global__ void __launch_bounds__(Threads, 4) differentiate_kernel(const __grid_constant__ Params x) {
  extern __shared__ uint32_t bits[];
  __shared__ Row at;
  __shared__ float scratch[Threads / 32];
  const int64_t r = blockIdx.x;
  if (threadIdx.x == 0) at = row_of(x, uint32_t(r));
  __syncthreads();
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  float *s = x.s + r * x.pitch_s, *dp = x.dp + r * x.pitch_s;
  const Logits<General> logit(x, at, listed(x, at, bits));
  const bool there = at.i < at.seq.len_q;
  const auto [reference, delta, empty] = row_gradient<Threads>(x, at, scratch);
  // If rows share a bias gradient, it is summed afterwards; otherwise each row writes its own.
  const bool one_key = a[Role::d_bias].extent.dim == 1 && !p.has(Option::block_bias);
  float* d_bias = there ? a.row<float>(Role::d_bias, at.b, at.i, at.h) : nullptr;
  if (x.db) d_bias = x.db + r * (one_key ? 1 : x.pitch_s);
  float of_keys = 0.f;
  for (int start = 0; start < p.len_k; start += Threads * 4) {
    const int j = start + int(threadIdx.x) * 4;
    float w[4] = {}, g[4] = {}, d[4] = {};
    if (!empty && j < at.keys.last && j + 4 > at.keys.first) {
      const float4 dot4 = *reinterpret_cast<const float4*>(s + j), dp4 = *reinterpret_cast<const float4*>(dp + j);
      const float dot[4] = {dot4.x, dot4.y, dot4.z, dot4.w}, d_weight[4] = {dp4.x, dp4.y, dp4.z, dp4.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (!logit.seen(j + n)) continue;
        const float keep = logit.score.keep(at.i, j + n);
        const float weight = exp2f(exponent_of_weight(logit.logit(dot[n], j + n), reference));
        const float d_logit = weight * (d_weight[n] * keep - delta);
        d[n] = d_logit, of_keys += d_logit;
        w[n] = weight * keep, g[n] = d_logit * logit.score.slope_of_logit(dot[n]) * x.in_ds;
      }
    }
    __syncthreads();  // as in the softmax: a stripe is read before it is written
    if (j < p.len_k) {
      store4(reinterpret_cast<T*>(s) + j, {w[0], w[1], w[2], w[3]});
      store4(reinterpret_cast<T*>(dp) + j, {g[0], g[1], g[2], g[3]});
    }
    for (int n = 0; n < 4; ++n)
      if (d_bias && !one_key && j + n < p.len_k) d_bias[j + n] = d[n];
  }
  if (!a.given(Role::d_bias) || !one_key) return;
  of_keys = reduce<Threads>(of_keys, scratch, Plus());
  if (threadIdx.x == 0 && d_bias) *d_bias = of_keys;
}

}  // namespace attune::standard
