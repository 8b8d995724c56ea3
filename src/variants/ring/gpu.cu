// SPDX-License-Identifier: Apache-2.0
// Fills the tables and lists of a shard on a GPU.
#include "machine/cuda/launch.h"
#include "variants/ring/gpu.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void tables_kernel(const __grid_constant__ ShardTables x) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.items(); n += step) x.fill(n);
}

// One CTA per list. Takes kThreads rows at a time: each thread counts the kept entries of its row, and a prefix sum
// over the threads gives their location.
__global__ void lists_kernel(const __grid_constant__ ListCut x) {
  __shared__ int32_t sum[kThreads];
  const int me = int(threadIdx.x), list = int(blockIdx.x);
  const int32_t* const from = x.list(list);
  int32_t* const to = x.to_begin + int64_t(list) * (x.rows + 1);
  int32_t base = x.entry(from);
  for (int row = 0; row < x.rows; row += kThreads) {
    const bool there = row + me < x.rows;
    const int32_t first = there ? x.entry(from + row + me) : 0, last = there ? x.entry(from + row + me + 1) : 0;
    int32_t count = 0;
    for (int32_t e = first; e < last; ++e) count += x.kept(e);
    sum[me] = count;
    __syncthreads();
    for (int step = 1; step < kThreads; step *= 2) {
      const int32_t before = me >= step ? sum[me - step] : 0;
      __syncthreads();
      sum[me] += before;
      __syncthreads();
    }
    int32_t next = base + sum[me] - count;
    if (there) to[row + me] = clamp(next, 0, x.bound);
    for (int32_t e = first; e < last; ++e)
      if (x.kept(e) && next < x.bound) x.to_column[next++] = x.column[e] - x.first;
    base += sum[kThreads - 1];
    __syncthreads();
  }
  if (!me) to[x.rows] = clamp(base, 0, x.bound);
}

}  // namespace

Status fill_tables(const ShardTables& x, int index, void* stream) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  const int64_t blocks = ceil_div(x.items(), kThreads);
  tables_kernel<<<unsigned(blocks < 64 ? blocks : 64), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  return last_error("tables_kernel");
}

Status cut_lists(const ListCut& x, int index, void* stream) {
  const DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  lists_kernel<<<unsigned(x.batches * x.heads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  return last_error("lists_kernel");
}

}  // namespace attune::cuda
