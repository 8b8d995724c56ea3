// SPDX-License-Identifier: Apache-2.0
// Selected attention by ordinary multiply-adds: the kernels of cuda_selected. A warp has a row, and its lanes share the
// head dim, so rows may have any alignment and any dtype. Every sum has a fixed order.
//   forward  for each key of the token's list: q k, admit, o += p v
//   dQ       the same walk: q k, dO v, dQ += dS k
//   dK, dV   a warp has a key and walks the tokens that chose its block, and their heads
#pragma once
#include "attention/gpu/nsa/selected_lists.h"
#include "core/large_logit.h"
#include "machine/cuda/vec16.h"

namespace attune::cuda {

constexpr int kPlainVec = 8, kPlainDim = kPlainVec * 32;  // dims per lane, and largest head dim
constexpr int kPlainWarps = 4, kPlainThreads = kPlainWarps * 32;

struct PlainParams {
  sm80::SelectedParams x;
  sm80::SelectedLists lists;
  float2* row_stats;  // [batch][head][len_q]: lse_of_weights() in base 2, +inf if a row sees no key; delta
};

using PlainRow = float[kPlainVec];  // elements lane, lane + 32, ...

template <class T>
__device__ inline void load(PlainRow& to, const Tensor& t, int64_t b, int64_t s, int64_t h, int dim) {
  const char* row = row_address(t, b, s, h);
#pragma unroll
  for (int n = 0; n < kPlainVec; ++n) {
    const int d = int(threadIdx.x % 32) + n * 32;
    float one[1] = {0.f};
    if (d < dim) load_vector<T>(row + int64_t(d) * size_of(t.dtype), t.dtype, one);
    to[n] = one[0];
  }
}
__device__ inline void store(const PlainRow& from, float factor, const Tensor& t, int64_t b, int64_t s, int64_t h,
                             int dim) {
  char* row = row_address(t, b, s, h);
#pragma unroll
  for (int n = 0; n < kPlainVec; ++n) {
    const int d = int(threadIdx.x % 32) + n * 32;
    const float one[1] = {from[n] * factor};
    if (d < dim) write(one, t.dtype, row + int64_t(d) * size_of(t.dtype));
  }
}
// Dot product, returned to all lanes.
__device__ inline float dot(const PlainRow& a, const PlainRow& b) {
  float sum = 0.f;
#pragma unroll
  for (int n = 0; n < kPlainVec; ++n) sum = fmaf(a[n], b[n], sum);
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}
__device__ inline void add(PlainRow& to, float factor, const PlainRow& x) {
#pragma unroll
  for (int n = 0; n < kPlainVec; ++n) to[n] = fmaf(factor, x[n], to[n]);
}

// Index over all warps of a launch, below 2^32.
__device__ inline uint32_t warp_number() { return blockIdx.x * kPlainWarps + threadIdx.x / 32; }

// The row of a warp. If it does not exist, len_q is 0.
struct PlainPlace {
  Sequence seq;
  int b, token, head, head_kv;
  int64_t at;  // index in its tensors
  __device__ explicit PlainPlace(const sm80::SelectedParams& x) {
    const Problem& p = x.problem;
    const uint32_t n = warp_number(), rest = n / uint32_t(p.heads_q);
    head = int(n % uint32_t(p.heads_q)), token = int(rest % uint32_t(p.len_q)), b = int(rest / uint32_t(p.len_q));
    if (b >= p.batch) return;
    head_kv = int(x.group.divide(head));
    seq = x.sequence_of(b), at = seq.q_first + int64_t(token);
    if (token >= seq.len_q) seq.len_q = 0;
  }
  __device__ int64_t end(const Problem& p) const { return (int64_t(b) * p.heads_q + head) * p.len_q + token; }
};

// Calls use() for the keys of a token's list, in order.
template <class F>
__device__ inline void each_key(const sm80::SelectedParams& x, const PlainPlace& at, F use) {
  const int32_t* list = reinterpret_cast<const int32_t*>(x.blocks.row(at.seq.q_batch, at.at, at.head_kv));
  const int seen = sm80::keys_seen(at.seq, at.token);
  int before = -1;
  for (int n = 0; n < x.n; ++n) {
    const int block = list[n];
    if (block <= before) continue;
    before = block;
    const int64_t first = int64_t(block) * x.size, last = min(first + x.size, int64_t(seen));
    for (int64_t key = first; key < last; ++key) use(at.seq.k_first + key);
  }
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads, 4) plain_forward_kernel(const __grid_constant__ PlainParams params) {
  const sm80::SelectedParams& x = params.x;
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  const PlainPlace at(x);
  if (!at.seq.len_q) return;
  PlainRow q, k, v, o = {};
  load<T>(q, a[Role::q], at.seq.q_batch, at.at, at.head, p.dim_qk);
  SoftmaxRow row;
  each_key(x, at, [&](int64_t key) {
    load<T>(k, a[Role::k], at.seq.k_batch, key, at.head_kv, p.dim_qk);
    load<T>(v, a[Role::v], at.seq.k_batch, key, at.head_kv, p.dim_v);
    const float logit = __fmul_rn(dot(q, k), x.scale);  // rounded before the largest is subtracted
    const float factor = row.admit(logit), weight = row.weight(logit);
    row.sum += weight;
#pragma unroll
    for (int n = 0; n < kPlainVec; ++n) o[n] = fmaf(weight, v[n], o[n] * factor);
  });
  const RowEnd end(row);
  store(o, end.now, a[Role::out], at.seq.q_batch, at.at, at.head, p.dim_v);
  if (a.given(Role::lse) && threadIdx.x % 32 == 0)
    *a.row<float>(Role::lse, at.seq.q_batch, at.at, at.head) = end.lse;
}

static __global__ void __launch_bounds__(kPlainThreads, 4)
    plain_row_stats_kernel(const __grid_constant__ PlainParams params) {
  const Problem& p = params.x.problem;
  const DenseArgs& a = params.x.args;
  const PlainPlace at(params.x);
  if (!at.seq.len_q) return;
  PlainRow out, d_out;
  load<void>(out, a[Role::out], at.seq.q_batch, at.at, at.head, p.dim_v);
  load<void>(d_out, a[Role::d_out], at.seq.q_batch, at.at, at.head, p.dim_v);
  float delta = dot(out, d_out);
  const float lse = *a.row<const float>(Role::lse, at.seq.q_batch, at.at, at.head);
  if (a.given(Role::d_lse)) delta -= *a.row<const float>(Role::d_lse, at.seq.q_batch, at.at, at.head);
  const float2 end = lse == -INFINITY ? float2{INFINITY, 0.f} : float2{lse_of_weights(lse), delta};
  if (threadIdx.x % 32 == 0) params.row_stats[at.end(p)] = end;
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads, 4) plain_rows_kernel(const __grid_constant__ PlainParams params) {
  const sm80::SelectedParams& x = params.x;
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  const PlainPlace at(x);
  if (!at.seq.len_q) return;
  PlainRow q, d_out, k, v, dq = {};
  load<T>(q, a[Role::q], at.seq.q_batch, at.at, at.head, p.dim_qk);
  load<void>(d_out, a[Role::d_out], at.seq.q_batch, at.at, at.head, p.dim_v);
  const float2 end = params.row_stats[at.end(p)];
  each_key(x, at, [&](int64_t key) {
    load<T>(k, a[Role::k], at.seq.k_batch, key, at.head_kv, p.dim_qk);
    load<T>(v, a[Role::v], at.seq.k_batch, key, at.head_kv, p.dim_v);
    const float weight = weight_of_large_logit(exp2f(fmaf(dot(q, k), x.scale, -end.x)), end.x);
    add(dq, weight * (dot(d_out, v) - end.y), k);
  });
  store(dq, x.scale * kLn2, a[Role::dq], at.seq.q_batch, at.at, at.head, p.dim_qk);
}

// A list of tokens has one warp per key of its block.
template <class T>
__global__ void __launch_bounds__(kPlainThreads, 4) plain_keys_kernel(const __grid_constant__ PlainParams params) {
  const sm80::SelectedParams& x = params.x;
  const sm80::SelectedLists& lists = params.lists;
  const Problem& p = x.problem;
  const DenseArgs& a = x.args;
  const uint32_t n = warp_number(), list = n / uint32_t(x.size);
  if (list >= uint32_t(lists.lists)) return;
  const uint32_t sequence_head = list / uint32_t(lists.blocks), block = list - sequence_head * uint32_t(lists.blocks);
  const int b = int(x.heads_kv.divide(sequence_head)), head_kv = int(x.heads_kv.rest(sequence_head));
  const Sequence s = x.sequence_of(b);
  const int64_t key = int64_t(block) * x.size + n % uint32_t(x.size);
  if (key >= s.len_k || !lists.count[list]) return;
  PlainRow k, v, q, d_out, dk = {}, dv = {};
  load<T>(k, a[Role::k], s.k_batch, s.k_first + key, head_kv, p.dim_qk);
  load<T>(v, a[Role::v], s.k_batch, s.k_first + key, head_kv, p.dim_v);
  const int group = int(x.group.by);
  for (int i = 0; i < lists.count[list]; ++i) {
    const int token = clamp(lists.tokens[lists.begin[list] + i], 0, s.len_q - 1);
    if (key >= sm80::keys_seen(s, token)) continue;
    for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
      load<T>(q, a[Role::q], s.q_batch, s.q_first + int64_t(token), head, p.dim_qk);
      load<void>(d_out, a[Role::d_out], s.q_batch, s.q_first + int64_t(token), head, p.dim_v);
      const float2 end = params.row_stats[(int64_t(b) * p.heads_q + head) * p.len_q + token];
      const float weight = weight_of_large_logit(exp2f(fmaf(dot(q, k), x.scale, -end.x)), end.x);
      add(dv, weight, d_out);
      add(dk, weight * (dot(d_out, v) - end.y), q);
    }
  }
  if (a.given(Role::dk)) store(dk, x.scale * kLn2, a[Role::dk], s.k_batch, s.k_first + key, head_kv, p.dim_qk);
  if (a.given(Role::dv)) store(dv, 1.f, a[Role::dv], s.k_batch, s.k_first + key, head_kv, p.dim_v);
}

}  // namespace attune::cuda
