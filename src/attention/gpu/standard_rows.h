// SPDX-License-Identifier: Apache-2.0
// Textbook attention on a GPU: packing and unpacking of rows, and the sums over many rows. Every sum has a fixed order,
// so runs are repeatable to the bit.
#pragma once
#include "attention/gpu/standard.h"

namespace attune::standard {

// A warp copies a row, 16 bytes per lane where both addresses allow it; null `from`: zeros.
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

// A warp adds an f32 row to the existing values.
__device__ inline void add_row(char* to, const char* from, int dim) {
  for (int d = threadIdx.x % 32; d < dim; d += 32)
    reinterpret_cast<float*>(to)[d] += reinterpret_cast<const float*>(from)[d];
}

__device__ inline char* key_address(const Params& x, Role role, const Sequence& s, int b, int head, int64_t j) {
  const Tensor& t = x.args[role];
  const int64_t at = s.k_first + j;
  if (x.problem.keys != KeySource::paged) return row_address(t, s.k_batch, at, head);
  const int32_t* table = x.args.row<const int32_t>(Role::page_table, b);
  const uint32_t page = uint32_t(at) / uint32_t(x.problem.page), slot = uint32_t(at) % uint32_t(x.problem.page);
  return row_address(t, clamp(table[page], 0, t.extent.batch - 1), slot, head);
}

// Position of a packed key row. As in row_of, divisions use 32 bits: 64-bit ones are calls and cause register spills.
struct Key { int b, head, j; };
__device__ inline Key key_of(const Params& x, uint32_t r) {
  const uint32_t len_k = uint32_t(x.problem.len_k), heads = uint32_t(x.problem.heads_kv);
  const uint32_t kv_head = uint32_t(x.first_head) + r / len_k;
  return {x.first_b + int(kv_head / heads), int(kv_head % heads), int(r % len_k)};
}

// Rows that no sequence owns become zeros, so that they add nothing to a product.
__global__ void __launch_bounds__(kWarpsOfCopy * 32) gather_kernel(const __grid_constant__ Params x) {
  const int64_t r = int64_t(blockIdx.x) * kWarpsOfCopy + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Problem& p = x.problem;
  const int size = size_of(p.dtype.q), bytes_qk = p.dim_qk * size, bytes_v = p.dim_v * size;
  if (x.which == 0) {
    const Row at = row_of(x, uint32_t(r));
    const bool there = at.i < at.seq.len_q;
    const int64_t token = at.seq.q_first + at.i;
    const auto from = [&](Role role) {
      return there ? row_address(x.args[role], at.seq.q_batch, token, at.h) : nullptr;
    };
    copy_row(x.q + r * x.pitch_qk * size, from(Role::q), bytes_qk);
    if (p.pass == Pass::backward) copy_row(x.d_out + r * x.pitch_v * size, from(Role::d_out), bytes_v);
  } else {
    const auto [b, head, j] = key_of(x, uint32_t(r));
    const Sequence s = sequence(p, x.args, b);
    const auto from = [&](Role role) { return j < s.len_k ? key_address(x, role, s, b, head, j) : nullptr; };
    copy_row(x.k + r * x.pitch_qk * size, from(Role::k), bytes_qk);
    copy_row(x.v + r * x.pitch_v * size, from(Role::v), bytes_v);
  }
}

// Writes out of a forward, dq of a backward, or the rows of dk and dv if no two sequences share one.
__global__ void __launch_bounds__(kWarpsOfCopy * 32, 4) scatter_kernel(const __grid_constant__ Params x) {
  const int64_t r = int64_t(blockIdx.x) * kWarpsOfCopy + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Problem& p = x.problem;
  const int grad = size_of(p.dtype.grad);
  const auto put = [&](char* to, const char* from, int dim) {
    p.has(Option::accumulate) ? add_row(to, from, dim) : copy_row(to, from, dim * grad);
  };
  if (x.which == 0) {
    const Row at = row_of(x, uint32_t(r));
    if (at.i >= at.seq.len_q) return;
    const bool forward = p.pass == Pass::forward;
    char* to = row_address(x.args[forward ? Role::out : Role::dq], at.seq.q_batch, at.seq.q_first + at.i, at.h);
    if (!forward) return put(to, x.dq + r * x.pitch_qk * grad, p.dim_qk);
    const char* from = x.out + r * x.pitch_v * size_of(p.dtype.out);
    if (!p.has(Option::accumulate)) return copy_row(to, from, p.dim_v * size_of(p.dtype.out));
    const float before = x.before[r];
    for (int d = threadIdx.x % 32; d < p.dim_v; d += 32) {
      float* place = reinterpret_cast<float*>(to) + d;  // a row that saw no key yet is not read
      *place = reinterpret_cast<const float*>(from)[d] + (before == 0.f ? 0.f : before * *place);
    }
  } else {
    const auto [b, head, j] = key_of(x, uint32_t(r));
    const Sequence s = sequence(p, x.args, b);
    if (j >= s.len_k) return;
    if (x.args.given(Role::dk))
      put(key_address(x, Role::dk, s, b, head, j), x.dk + r * x.pitch_qk * grad, p.dim_qk);
    if (x.args.given(Role::dv))
      put(key_address(x, Role::dv, s, b, head, j), x.dv + r * x.pitch_v * grad, p.dim_v);
  }
}

// dk and dv where sequences may share a cache row or a page: a thread owns a column and adds rows in order, rounding to
// the gradient's dtype after each. Slow but deterministic.
__global__ void __launch_bounds__(64) add_keys_kernel(const __grid_constant__ Params x) {
  const Problem& p = x.problem;
  const int head = blockIdx.x / 2 % p.heads_kv, d = int(blockIdx.x / 2 / p.heads_kv) * 64 + int(threadIdx.x);
  const bool of_k = blockIdx.x % 2 == 0;
  const Role role = of_k ? Role::dk : Role::dv;
  if (!x.args.given(role) || d >= (of_k ? p.dim_qk : p.dim_v)) return;
  const DType grad = p.dtype.grad;
  const char* from = of_k ? x.dk : x.dv;
  const int64_t pitch = int64_t(of_k ? x.pitch_qk : x.pitch_v) * size_of(grad);
  for (int n = 0; n < x.kv_heads; ++n) {
    const int64_t kv_head = x.first + n;
    if (int(kv_head % p.heads_kv) != head) continue;
    const int b = int(kv_head / p.heads_kv);
    const Sequence s = sequence(p, x.args, b);
    for (int j = 0; j < s.len_k; ++j) {
      char* to = key_address(x, role, s, b, head, j);
      store(to, grad, d, load(to, grad, d) + load(from + (int64_t(n) * p.len_k + j) * pitch, grad, d));
    }
  }
}

// Sets every row of a tensor to zero.
__global__ void __launch_bounds__(kWarpsOfCopy * 32) clear_kernel(const __grid_constant__ Params x) {
  const int64_t r = int64_t(blockIdx.x) * kWarpsOfCopy + threadIdx.x / 32;
  if (r >= x.rows) return;
  const Tensor& t = x.args[x.cleared];
  const int64_t h = r % t.extent.head, s = r / t.extent.head % t.extent.seq, b = r / t.extent.head / t.extent.seq;
  copy_row(row_address(t, b, s, h), nullptr, t.extent.dim * size_of(t.dtype));
}

// The sink gradient, one head per CTA; rows in a fixed order.
__global__ void __launch_bounds__(256) sink_kernel(const __grid_constant__ Params x) {
  __shared__ double scratch[256];
  const Problem& p = x.problem;
  const int h = blockIdx.x;
  double sum = 0;
  for (int64_t n = threadIdx.x; n < int64_t(p.batch) * p.len_q; n += 256)
    sum += x.sink_terms[(n / p.len_q * p.heads_q + h) * p.len_q + n % p.len_q];
  scratch[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step; step /= 2) {
    if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  float* to = x.args.row<float>(Role::d_sinks, 0, 0, h);
  *to = float(scratch[0] + (p.has(Option::accumulate) ? double(*to) : 0.));
}

// The rows of the chunk that share one row of d_bias: `count` of them, in a fixed order.
struct Folded {
  // Ranges within the chunk, the group and the queries.
  int first_kv_head, kv_heads, step, first_head, heads, first_i, rows;

  __device__ int count() const { return kv_heads * heads * rows; }
  __device__ int64_t row(const Params& x, int m) const {
    const int i = first_i + m % rows, n = first_head + m / rows % heads, u = first_kv_head + m / rows / heads * step;
    return (int64_t(u) * x.group + n) * x.problem.len_q + i;
  }
};
__device__ inline Folded folded(const Params& x, Extents shape, int b, int i, int h) {
  const int kv = x.problem.heads_kv;
  Folded f{0, x.kv_heads, 1, 0, x.group, 0, x.problem.len_q};
  if (shape.head > 1) {
    f.first_head = h % x.group, f.heads = 1, f.step = kv;
    f.first_kv_head = h / x.group - x.first_head, f.first_kv_head += f.first_kv_head < 0 ? kv : 0;
    f.kv_heads = f.first_kv_head < x.kv_heads ? (x.kv_heads - f.first_kv_head - 1) / kv + 1 : 0;
  }
  if (shape.batch > 1) {
    const int begin = (b - x.first_b) * kv - x.first_head;  // first KV head of the sequence, within the chunk
    const int first = shape.head > 1 ? begin + h / x.group : max(begin, 0);
    const int last = shape.head > 1 ? first + 1 : min(begin + kv, x.kv_heads);
    f.first_kv_head = first, f.step = 1, f.kv_heads = first >= 0 && last <= x.kv_heads ? max(last - first, 0) : 0;
  }
  if (shape.seq > 1) f.first_i = i, f.rows = 1;
  return f;
}

// Adds the chunk's contribution to d_bias: a CTA has some columns of one row. Sums are doubles, since most terms
// cancel.
__global__ void __launch_bounds__(256) bias_kernel(const __grid_constant__ Params x) {
  __shared__ double scratch[256];
  const Tensor& t = x.args[Role::d_bias];
  const uint32_t tiles = uint32_t(t.extent.dim + x.columns - 1) / uint32_t(x.columns);
  uint32_t row = blockIdx.x / tiles;
  const int h = int(row % uint32_t(t.extent.head));
  row /= uint32_t(t.extent.head);
  const int i = int(row % uint32_t(t.extent.seq));
  const int b = int(row / uint32_t(t.extent.seq)) + (t.extent.batch > 1 ? x.first_b : 0);
  const int column = int(blockIdx.x % tiles) * x.columns + int(threadIdx.x) % x.columns;
  const int lanes = 256 / x.columns, lane = int(threadIdx.x) / x.columns;
  const int64_t pitch = t.extent.dim == 1 ? 1 : x.pitch_s;
  const Folded all = folded(x, t.extent, b, i, h);
  double sum = 0;
  if (column < t.extent.dim)
    for (int m = lane; m < all.count(); m += lanes) sum += double(x.db[all.row(x, m) * pitch + column]);
  scratch[threadIdx.x] = sum;
  for (int step = lanes / 2; step; step /= 2) {
    __syncthreads();
    if (lane < step) scratch[threadIdx.x] += scratch[threadIdx.x + step * x.columns];
  }
  if (lane == 0 && column < t.extent.dim && all.count())
    view<float>(t).row(b, i, h)[column] += float(scratch[threadIdx.x]);
}

// Adds the chunk's contribution to the gradient of block_bias. Any two lists may share entries, so one CTA does all of
// it, in order: slow but deterministic.
__global__ void __launch_bounds__(256) block_bias_kernel(const __grid_constant__ Params x) {
  __shared__ float scratch[8];
  const Problem& p = x.problem;
  const Blocks size = p.mask.blocks;
  const int rows = int(ceil_div(p.len_q, size.q));
  for (int u = 0; u < x.kv_heads * x.group; ++u) {
    const int kv_head = x.first_head + u / x.group, b = x.first_b + kv_head / p.heads_kv;
    const BlockList list = list_of(x, b, kv_head % p.heads_kv * x.group + u % x.group);
    const float* head = x.db + int64_t(u) * p.len_q * x.pitch_s;
    for (int row = 0; row < rows; ++row)
      for (int n = 0; n < list.count(row); ++n) {
        const int64_t key = int64_t(list.key_block(row, n)) * size.k;
        const int i0 = row * size.q, i1 = min(i0 + size.q, p.len_q);
        const int j0 = clamp(key, 0, p.len_k), j1 = clamp(key + size.k, j0, p.len_k), width = j1 - j0;
        float sum = 0.f;
        for (int m = int(threadIdx.x); m < (i1 - i0) * width; m += 256)
          sum += head[int64_t(i0 + m / width) * x.pitch_s + j0 + m % width];
        sum = reduce<256>(sum, scratch, Plus());
        if (threadIdx.x == 0) x.args.row<float>(Role::d_bias)[list.entry(row) + n] += sum;
      }
  }
}

}  // namespace attune::standard
