// Attention as a textbook writes it, on a GPU: the kernels between the matrix products. A unit is a head of keys of one
// sequence with the query heads that share it; its scores are [head of the group, query, key] in f32, and the softmax
// leaves the weights in their place, in the dtype of the inputs, from the start of each row.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/score.h"

namespace attune::standard {

constexpr int kWarpsOfCopy = 8;  // a warp copies a row

// What the kernels of one chunk of units share.
struct Params {
  Problem problem;
  DenseArgs args;
  int64_t first;                          // the chunk's first unit
  int32_t units;                          // how many
  int32_t group;                          // query heads of a unit
  int32_t pitch_s, pitch_qk, pitch_v;     // elements from row to row: of scores in f32, of packed rows
  int32_t which;                          // of a copy: 0 the queries, 1 the keys
  float *s, *dp;                          // [unit][group][len_q][pitch_s]; dp of a backward
  char *q, *k, *v, *out;                  // packed rows [unit][group][len_q] and [unit][len_k]
  char *d_out, *dq, *dk, *dv;             // backward
  float* before;                          // [unit][group][len_q]: factor of the running output
  float* sink_part;                       // [batch][head][len_q]: what each row adds to d_sinks; null unless asked for
  int64_t rows;                           // of a copy or a clear
  Role cleared;
};

// Where a row of the chunk belongs.
struct Row {
  int b, head_kv, h, i;
  Sequence seq;
  Rows keys;  // that the band shows; empty where there is no such query
};

__device__ inline Row row_of(const Params& x, int64_t r) {
  const Problem& p = x.problem;
  Row at;
  at.i = int(r % p.len_q), r /= p.len_q;
  const int n = int(r % x.group);
  const int64_t unit = x.first + r / x.group;
  at.b = int(unit / p.heads_kv), at.head_kv = int(unit % p.heads_kv), at.h = at.head_kv * x.group + n;
  at.seq = sequence(p, x.args, at.b);
  at.keys = {0, 0};
  if (at.i < at.seq.len_q) {
    const BandWalk walk{at.seq.band, at.seq.len_k, 1};
    at.keys.first = walk.first_key(at.i), at.keys.last = max(at.keys.first, walk.last_key(at.i));
  }
  return at;
}

// Four neighbours in one store.
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

// Over the block, the same in every thread; the order is fixed. `room` has a number a warp.
template <int Threads, class Combine>
__device__ float reduce(float x, float* room, Combine combine) {
  for (int step = 16; step; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
  if constexpr (Threads == 32) return x;
  __syncthreads();  // the room may still be read from the last time
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  x = room[0];
  for (int n = 1; n < Threads / 32; ++n) x = combine(x, room[n]);
  return x;
}

// Key blocks in the list of a row's query block, a bit each, in shared memory. Null where the mask has no list.
__device__ inline const uint32_t* listed(const Params& x, const Row& at, uint32_t* bits) {
  const Blocks size = x.problem.mask.blocks;
  if (!size.q) return nullptr;
  const int count = int(ceil_div(x.problem.len_k, size.k));
  for (int n = threadIdx.x; n < (count + 31) / 32; n += blockDim.x) bits[n] = 0;
  __syncthreads();
  if (at.i < at.seq.len_q) {
    const BlockList list{size, x.args.row<const int32_t>(Role::block_begin, at.b, 0, at.h),
                         x.args.row<const int32_t>(Role::block_column)};
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
  const Row& at;
  const uint32_t* bits;
  int block_k;

  __device__ Logits(const Params& x, const Row& row, const uint32_t* list)
      : score(x.problem, x.args, row.seq, row.b, row.h), at(row), bits(list), block_k(x.problem.mask.blocks.k) {}
  __device__ bool seen(int j) const {
    if (j < at.keys.first || j >= at.keys.last) return false;
    return !bits || (bits[j / block_k / 32] >> (j / block_k % 32) & 1);
  }
  __device__ float operator()(float dot, int j) const { return seen(j) ? score.logit(dot, at.i, j) : -INFINITY; }
};

// The end of a row: its normalisation, its lse, and the factor of what was there before.
__device__ inline float end_row(const Params& x, const Row& at, int64_t r, float max, float sum) {
  SoftmaxRow row;
  row.max = max, row.sum = sum;
  RowEnd end(row);
  const int64_t token = at.seq.q_first + at.i;
  float* lse = x.args.row<float>(Role::lse, at.seq.q_batch, token, at.h);
  if (at.i < at.seq.len_q) {
    if (x.problem.has(Option::accumulate)) end.merge_running(*lse);
    if (x.problem.has(Option::sink)) end.merge_sink(*x.args.row<const float>(Role::sinks, 0, 0, at.h));
  }
  __syncthreads();  // every thread has read lse
  if (threadIdx.x == 0) {
    x.before[r] = end.before;
    if (lse && at.i < at.seq.len_q) *lse = end.lse;
  }
  return end.now;
}

__device__ inline float largest(float4 x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }
__device__ inline float total(float4 x) { return (x.x + x.y) + (x.z + x.w); }
__device__ inline float4 weights(float4 l, float reference, float factor) {
  return {exp2f(l.x - reference) * factor, exp2f(l.y - reference) * factor, exp2f(l.z - reference) * factor,
          exp2f(l.w - reference) * factor};
}

// Scores to normalised, dropped weights, a block a row. With `Vectors` a thread keeps 4 * Vectors scores in registers
// and the row is read once; with 0 the row may have any length and is read twice.
template <class T, class Score, int Threads, int Vectors>
__global__ void __launch_bounds__(Threads) soften_kernel(const __grid_constant__ Params x) {
  extern __shared__ uint32_t bits[];
  __shared__ Row at;
  __shared__ float room[Threads / 32];
  const int64_t r = blockIdx.x;
  if (threadIdx.x == 0) at = row_of(x, r);
  __syncthreads();
  float* s = x.s + r * x.pitch_s;
  T* to = reinterpret_cast<T*>(s);
  const Logits<Score> logit(x, at, listed(x, at, bits));
  const int len_k = x.problem.len_k;
  constexpr int kStripe = Threads * 4;
  if constexpr (Vectors > 0) {
    float4 l[Vectors];
    float top = -INFINITY, sum = 0.f;
#pragma unroll
    for (int n = 0; n < Vectors; ++n) {
      const int j = n * kStripe + int(threadIdx.x) * 4;
      l[n] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      if (j >= at.keys.last || j + 4 <= at.keys.first) continue;
      const float4 dot = *reinterpret_cast<const float4*>(s + j);
      l[n] = {logit(dot.x, j), logit(dot.y, j + 1), logit(dot.z, j + 2), logit(dot.w, j + 3)};
      top = fmaxf(top, largest(l[n]));
    }
    top = reduce<Threads>(top, room, Larger());
    const float reference = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int n = 0; n < Vectors; ++n) {
      l[n] = weights(l[n], reference, 1.f);
      sum += total(l[n]);
    }
    sum = reduce<Threads>(sum, room, Plus());
    const float now = end_row(x, at, r, top, sum);
#pragma unroll
    for (int n = 0; n < Vectors; ++n) {
      const int j = n * kStripe + int(threadIdx.x) * 4;
      if (j < len_k) store4(to + j, {l[n].x * now, l[n].y * now, l[n].z * now, l[n].w * now});
    }
  } else {
    float top = -INFINITY, sum = 0.f;
    for (int j = at.keys.first / 4 * 4 + int(threadIdx.x) * 4; j < at.keys.last; j += kStripe) {
      const float4 dot = *reinterpret_cast<const float4*>(s + j);
      const float4 l{logit(dot.x, j), logit(dot.y, j + 1), logit(dot.z, j + 2), logit(dot.w, j + 3)};
      store4(s + j, l);
      const float raised = fmaxf(top, largest(l)), reference = raised == -INFINITY ? 0.f : raised;
      sum = sum * exp2f(top - reference) + total(weights(l, reference, 1.f));
      top = raised;
    }
    const float all = reduce<Threads>(top, room, Larger()), reference = all == -INFINITY ? 0.f : all;
    sum = reduce<Threads>(sum * exp2f(top - reference), room, Plus());
    const float now = end_row(x, at, r, all, sum);
    // Weights lie where scores of the same or an earlier stripe were: all of a stripe is read before any is written.
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
}

// Scores and dp to dropped weights and to the gradients of dot products, both in place, a block a row.
template <class T, class Score, int Threads>
__global__ void __launch_bounds__(Threads) differentiate_kernel(const __grid_constant__ Params x) {
  extern __shared__ uint32_t bits[];
  __shared__ Row at;
  __shared__ float room[Threads / 32];
  const int64_t r = blockIdx.x;
  if (threadIdx.x == 0) at = row_of(x, r);
  __syncthreads();
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  float *s = x.s + r * x.pitch_s, *dp = x.dp + r * x.pitch_s;
  const Logits<Score> logit(x, at, listed(x, at, bits));
  const bool there = at.i < at.seq.len_q;
  const int64_t token = at.seq.q_first + at.i;
  const float lse = there ? *a.row<const float>(Role::lse, at.seq.q_batch, token, at.h) : -INFINITY;
  float delta = 0.f;
  if (there) {
    const char* o = row_address(a[Role::out], at.seq.q_batch, token, at.h);
    const char* d_o = row_address(a[Role::d_out], at.seq.q_batch, token, at.h);
    for (int d = threadIdx.x; d < p.dim_v; d += Threads) delta += load(o, p.dtype.out, d) * load(d_o, p.dtype.out, d);
  }
  delta = reduce<Threads>(delta, room, Plus());
  if (there && a.given(Role::d_lse)) delta -= *a.row<const float>(Role::d_lse, at.seq.q_batch, token, at.h);
  const bool empty = lse == -INFINITY;  // a row that sees nothing has no gradient
  if (threadIdx.x == 0 && x.sink_part)
    x.sink_part[(int64_t(at.b) * p.heads_q + at.h) * p.len_q + at.i] =
        empty ? 0.f : -expf(*a.row<const float>(Role::sinks, 0, 0, at.h) - lse) * delta;
  const float scale = scale_of(p, a), reference = lse * kLog2e;
  float* d_bias = there ? a.row<float>(Role::d_bias, at.b, at.i, at.h) : nullptr;  // a broadcast axis has stride 0
  for (int start = 0; start < p.len_k; start += Threads * 4) {
    const int j = start + int(threadIdx.x) * 4;
    float w[4] = {}, g[4] = {};
    if (!empty && j < at.keys.last && j + 4 > at.keys.first) {
      const float4 dot4 = *reinterpret_cast<const float4*>(s + j), dp4 = *reinterpret_cast<const float4*>(dp + j);
      const float dot[4] = {dot4.x, dot4.y, dot4.z, dot4.w}, d_weight[4] = {dp4.x, dp4.y, dp4.z, dp4.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (!logit.seen(j + n)) continue;
        const float keep = logit.score.keep(at.i, j + n);
        const float weight = exp2f(logit.score.logit(dot[n], at.i, j + n) - reference);
        const float d_logit = weight * (d_weight[n] * keep - delta);
        if constexpr (!std::is_same_v<Score, Plain>)
          if (d_bias) atomicAdd(d_bias + (a[Role::d_bias].extent.dim == 1 ? 0 : j + n), d_logit);
        w[n] = weight * keep, g[n] = d_logit * logit.score.slope_of_logit(dot[n]) * scale;
      }
    }
    __syncthreads();  // as in the softmax: a stripe is read before it is written
    if (j < p.len_k) {
      store4(reinterpret_cast<T*>(s) + j, {w[0], w[1], w[2], w[3]});
      store4(reinterpret_cast<T*>(dp) + j, {g[0], g[1], g[2], g[3]});
    }
  }
}

// One head's gradient of its sink, a block a head: rows in a fixed order.
__global__ void __launch_bounds__(256) sink_kernel(const __grid_constant__ Params x) {
  __shared__ double room[256];
  const Problem& p = x.problem;
  const int h = blockIdx.x;
  double sum = 0;
  for (int64_t n = threadIdx.x; n < int64_t(p.batch) * p.len_q; n += 256)
    sum += x.sink_part[(n / p.len_q * p.heads_q + h) * p.len_q + n % p.len_q];
  room[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (threadIdx.x < step) room[threadIdx.x] += room[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) *x.args.row<float>(Role::d_sinks, 0, 0, h) = float(room[0]);
}

// ---- To packed rows and back. -----------------------------------------------------------------------------------

// A row by a warp, 16 bytes a lane where both ends allow it; null `from`: zeros.
__device__ inline void copy_row(char* to, const char* from, int bytes) {
  const int lane = threadIdx.x % 32;
  const uintptr_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | uintptr_t(bytes);
  if (all % 16 == 0)
    for (int n = lane * 16; n < bytes; n += 512)
      *reinterpret_cast<uint4*>(to + n) = from ? *reinterpret_cast<const uint4*>(from + n) : uint4{0, 0, 0, 0};
  else
    for (int n = lane * 2; n < bytes; n += 64)
      *reinterpret_cast<uint16_t*>(to + n) = from ? *reinterpret_cast<const uint16_t*>(from + n) : uint16_t(0);
}

__device__ inline char* key_address(const Params& x, Role role, const Sequence& s, int b, int head, int64_t j) {
  const Tensor& t = x.args[role];
  const int64_t at = s.k_first + j;
  if (x.problem.keys != KeySource::paged) return row_address(t, s.k_batch, at, head);
  const int32_t* table = x.args.row<const int32_t>(Role::page_table, b);
  return row_address(t, clamp(table[at / x.problem.page], 0, t.extent.batch - 1), at % x.problem.page, head);
}

// Rows that no sequence has become zeros, so that they add nothing to a product.
__global__ void __launch_bounds__(kWarpsOfCopy * 32) gather_kernel(const __grid_constant__ Params x) {
  const int64_t r = int64_t(blockIdx.x) * kWarpsOfCopy + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Problem& p = x.problem;
  const int size = size_of(p.dtype.q), bytes_qk = p.dim_qk * size, bytes_v = p.dim_v * size;
  if (x.which == 0) {
    const Row at = row_of(x, r);
    const bool there = at.i < at.seq.len_q;
    const int64_t token = at.seq.q_first + at.i;
    const auto from = [&](Role role) {
      return there ? row_address(x.args[role], at.seq.q_batch, token, at.h) : nullptr;
    };
    copy_row(x.q + r * x.pitch_qk * size, from(Role::q), bytes_qk);
    if (p.pass == Pass::backward) copy_row(x.d_out + r * x.pitch_v * size, from(Role::d_out), bytes_v);
  } else {
    const int64_t unit = x.first + r / p.len_k, j = r % p.len_k;
    const int b = int(unit / p.heads_kv), head = int(unit % p.heads_kv);
    const Sequence s = sequence(p, x.args, b);
    const auto from = [&](Role role) { return j < s.len_k ? key_address(x, role, s, b, head, j) : nullptr; };
    copy_row(x.k + r * x.pitch_qk * size, from(Role::k), bytes_qk);
    copy_row(x.v + r * x.pitch_v * size, from(Role::v), bytes_v);
  }
}

// out of a forward, dq of a backward, or the rows of dk and dv where no two sequences share one.
__global__ void __launch_bounds__(kWarpsOfCopy * 32) scatter_kernel(const __grid_constant__ Params x) {
  const int64_t r = int64_t(blockIdx.x) * kWarpsOfCopy + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Problem& p = x.problem;
  const int grad = size_of(p.dtype.grad);
  if (x.which == 0) {
    const Row at = row_of(x, r);
    if (at.i >= at.seq.len_q) return;
    const bool forward = p.pass == Pass::forward;
    char* to = row_address(x.args[forward ? Role::out : Role::dq], at.seq.q_batch, at.seq.q_first + at.i, at.h);
    if (!forward) return copy_row(to, x.dq + r * x.pitch_qk * grad, p.dim_qk * grad);
    const char* from = x.out + r * x.pitch_v * size_of(p.dtype.out);
    if (!p.has(Option::accumulate)) return copy_row(to, from, p.dim_v * size_of(p.dtype.out));
    const float before = x.before[r];
    for (int d = threadIdx.x % 32; d < p.dim_v; d += 32) {
      float* place = reinterpret_cast<float*>(to) + d;  // a row that saw nothing yet is not read
      *place = reinterpret_cast<const float*>(from)[d] + (before == 0.f ? 0.f : before * *place);
    }
  } else {
    const int64_t unit = x.first + r / p.len_k, j = r % p.len_k;
    const int b = int(unit / p.heads_kv), head = int(unit % p.heads_kv);
    const Sequence s = sequence(p, x.args, b);
    if (j >= s.len_k) return;
    if (x.args.given(Role::dk))
      copy_row(key_address(x, Role::dk, s, b, head, j), x.dk + r * x.pitch_qk * grad, p.dim_qk * grad);
    if (x.args.given(Role::dv))
      copy_row(key_address(x, Role::dv, s, b, head, j), x.dv + r * x.pitch_v * grad, p.dim_v * grad);
  }
}

// dk and dv where sequences may share a cache row or a page: a thread owns a column and adds rows in order, rounding to
// the gradient's type after each. Slow and always the same.
__global__ void __launch_bounds__(64) add_keys_kernel(const __grid_constant__ Params x) {
  const Problem& p = x.problem;
  const int head = blockIdx.x / 2 % p.heads_kv, d = int(blockIdx.x / 2 / p.heads_kv) * 64 + int(threadIdx.x);
  const bool of_k = blockIdx.x % 2 == 0;
  const Role role = of_k ? Role::dk : Role::dv;
  if (!x.args.given(role) || d >= (of_k ? p.dim_qk : p.dim_v)) return;
  const DType grad = p.dtype.grad;
  const char* from = of_k ? x.dk : x.dv;
  const int64_t pitch = int64_t(of_k ? x.pitch_qk : x.pitch_v) * size_of(grad);
  for (int n = 0; n < x.units; ++n) {
    const int64_t unit = x.first + n;
    if (int(unit % p.heads_kv) != head) continue;
    const int b = int(unit / p.heads_kv);
    const Sequence s = sequence(p, x.args, b);
    for (int j = 0; j < s.len_k; ++j) {
      char* to = key_address(x, role, s, b, head, j);
      store(to, grad, d, load(to, grad, d) + load(from + (int64_t(n) * p.len_k + j) * pitch, grad, d));
    }
  }
}

// Zeros in every row of a tensor.
__global__ void __launch_bounds__(kWarpsOfCopy * 32) clear_kernel(const __grid_constant__ Params x) {
  const int64_t r = int64_t(blockIdx.x) * kWarpsOfCopy + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Tensor& t = x.args[x.cleared];
  const int64_t h = r % t.extent.head, s = r / t.extent.head % t.extent.seq, b = r / t.extent.head / t.extent.seq;
  copy_row(row_address(t, b, s, h), nullptr, t.extent.dim * size_of(t.dtype));
}

}  // namespace attune::standard
