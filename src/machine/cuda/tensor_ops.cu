// SPDX-License-Identifier: Apache-2.0
// tensor_ops.h on a GPU. Everything is bound by memory: a thread takes 4 elements at once where rows and addresses
// allow it, and switches on the dtype at run time, uniformly over a launch.
#include <algorithm>

#include <cuda_runtime.h>

#include "core/divisor.h"
#include "core/mask.h"
#include "core/softmax.h"
#include "machine/cuda/vec16.h"
#include "machine/cuda/launch.h"
#include "machine/tensor_ops.h"

namespace attune::cuda {
namespace {

using detail::Combine;
using detail::Merge;

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16 * 4;  // above, threads take several vectors
constexpr int64_t kMostRows = INT32_MAX;

// Addresses of the rows of `to`, by index.
struct Rows {
  uint32_t count;
  Divisor heads, seq;

  explicit Rows(const Tensor& t)
      : count(uint32_t(t.extent.batch) * uint32_t(t.extent.seq) * uint32_t(t.extent.head)),
        heads(uint32_t(t.extent.head)), seq(uint32_t(t.extent.seq)) {}
  __device__ char* find(const Tensor& t, uint32_t row, int64_t element) const {
    const uint32_t token = heads.divide(row);
    return row_address(t, seq.divide(token), seq.rest(token), heads.rest(row)) + element * size_of(t.dtype);
  }
};

struct CombineParams {
  Combine c;
  Rows rows;
  Divisor vectors;  // per row
  int64_t all;      // vectors of all rows
};

template <int Width, class Real>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ CombineParams x) {
  const Combine& c = x.c;
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.all; n += int64_t(gridDim.x) * kThreads) {
    // Below 2^31, a precomputed divisor; the row count is always below 2^31.
    const bool small = x.all <= INT32_MAX;
    const uint32_t row = small ? x.vectors.divide(uint32_t(n)) : uint32_t(n / x.vectors.by);
    const int64_t element = (n - int64_t(row) * x.vectors.by) * Width;
    Real sum[Width], value[Width];
#pragma unroll
    for (int d = 0; d < Width; ++d) sum[d] = Real(c.constant);
    if (c.factor != 0.f) {
      read(x.rows.find(c.from, row, element), c.from.dtype, value);
#pragma unroll
      for (int d = 0; d < Width; ++d) sum[d] += Real(c.factor) * value[d];
    }
    char* to = x.rows.find(c.to, row, element);
    if (c.keep != 0.f) {
      read(to, c.to.dtype, value);
#pragma unroll
      for (int d = 0; d < Width; ++d) sum[d] += Real(c.keep) * value[d];
    }
    write(sum, c.to.dtype, to);
  }
}

struct MergeParams {
  Merge m;
  Rows rows;
  int lanes;  // lanes of a warp per row: 1, 2, ... 32
};

template <int Width>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeParams x) {
  const Merge& m = x.m;
  const uint32_t rows = kThreads / uint32_t(x.lanes);  // per CTA
  const uint32_t lane = threadIdx.x % uint32_t(x.lanes);
  for (uint64_t first = uint64_t(blockIdx.x) * rows; first < x.rows.count; first += uint64_t(gridDim.x) * rows) {
    const uint64_t row = first + threadIdx.x / uint32_t(x.lanes);
    const bool real = row < x.rows.count;
    float* running = nullptr;
    Share share{};
    if (real) {
      running = reinterpret_cast<float*>(x.rows.find(m.lse, uint32_t(row), 0));
      share = attune::merge(*running, *reinterpret_cast<float*>(x.rows.find(m.partial_lse, uint32_t(row), 0)));
    }
    __syncwarp();  // all lanes have read the value that the first one writes
    if (!real) continue;
    if (lane == 0) *running = share.lse;
    for (int d = int(lane) * Width; d < m.out.extent.dim; d += x.lanes * Width) {
      float partial[Width] = {}, out[Width] = {};
      if (share.b != 0.f) read(x.rows.find(m.partial_out, uint32_t(row), d), m.partial_out.dtype, partial);
      char* to = x.rows.find(m.out, uint32_t(row), d);
      if (share.a != 0.f) read(to, DType::f32, out);
#pragma unroll
      for (int e = 0; e < Width; ++e) out[e] = out[e] * share.a + partial[e] * share.b;
      write(out, DType::f32, to);
    }
  }
}

// True if every vector of 4 elements starts at a multiple of its own size.
bool aligned16(const Tensor& t) {
  const auto whole = [](int64_t n) { return n % 4 == 0; };
  return t.dtype != DType::f64 && whole(t.extent.dim) && whole(t.stride.batch) && whole(t.stride.seq) &&
         whole(t.stride.head) && reinterpret_cast<uintptr_t>(t.data) % uintptr_t(4 * size_of(t.dtype)) == 0;
}

int64_t rows_of(const Tensor& t) { return int64_t(t.extent.batch) * t.extent.seq * t.extent.head; }

template <class Params>
Status start(void (*kernel)(Params), const Params& params, int64_t blocks, int device, void* stream, const char* who) {
  const DeviceGuard use(device);
  if (!use.status.ok()) return use.status.after(who, ": ");
  kernel<<<unsigned(std::min(blocks, kMostBlocks)), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params);
  return last_error(who);
}

}  // namespace

Status combine(const Combine& c, void* stream) {
  if (rows_of(c.to) > kMostRows) return Status::unsupported("combine: ", rows_of(c.to), " rows are over 2^31 - 1");
  const bool reads = c.factor != 0.f, fast = aligned16(c.to) && (!reads || aligned16(c.from));
  const bool twice = c.to.dtype == DType::f64 || (reads && c.from.dtype == DType::f64);
  const int64_t vectors = c.to.extent.dim / (fast ? 4 : 1), all = rows_of(c.to) * vectors;
  const CombineParams x{.c = c, .rows = Rows(c.to), .vectors = Divisor(uint32_t(vectors)), .all = all};
  return start(twice  ? combine_kernel<1, double>
               : fast ? combine_kernel<4, float>
                      : combine_kernel<1, float>,
               x, ceil_div(all, kThreads), c.to.device_index, stream, "combine");
}

Status merge(const Merge& m, void* stream) {
  if (rows_of(m.out) > kMostRows) return Status::unsupported("merge: ", rows_of(m.out), " rows are over 2^31 - 1");
  const bool fast = aligned16(m.out) && aligned16(m.partial_out);
  MergeParams x{.m = m, .rows = Rows(m.out), .lanes = 1};
  while (x.lanes < 32 && x.lanes * (fast ? 4 : 1) < m.out.extent.dim) x.lanes *= 2;
  return start(fast ? merge_kernel<4> : merge_kernel<1>, x, ceil_div(rows_of(m.out), kThreads / x.lanes),
               m.out.device_index, stream, "merge");
}

}  // namespace attune::cuda
