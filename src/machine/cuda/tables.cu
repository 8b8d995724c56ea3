// Small kernels that write tables: numbers of the host, lengths of NSA's parts, the tables and lists of a shard, the
// bias that stands for a mask. In one file, because each compiles in less time than the headers.
#include <algorithm>

#include "machine/cuda/launch.h"
#include "machine/cuda/masked.h"
#include "machine/cuda/ring.h"
#include "machine/nsa_lengths.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 128;

// Of scatter(): numbers travel as parameters of the kernel, so nothing waits and no memory of the host has to live
// until the GPU has read it, as it would behind a copy.
constexpr int kMost = 480;  // numbers a launch: parameters are at most 4 KB

struct ScatterParams {
  int32_t* to;
  int count;
  Number number[kMost];
};
static_assert(sizeof(ScatterParams) <= 4096);

__global__ void scatter_kernel(const __grid_constant__ ScatterParams x) {
  const int n = int(threadIdx.x);
  if (n < x.count) x.to[x.number[n].at] = x.number[n].value;
}

__global__ void __launch_bounds__(kThreads) lengths_kernel(const __grid_constant__ NsaLengths x) {
  const int b = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (b <= x.batch) nsa_lengths_of(x, b);
}

__global__ void tables_kernel(const __grid_constant__ ShardTables x) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.items(); n += step) x.fill(n);
}

// One block a list. Rows are taken kThreads at a time: each thread counts what is left of its row, a sum over the
// threads before it says where that goes.
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

// A block of threads a row of the bias.
constexpr int kMaskedThreads = 256;
__global__ void __launch_bounds__(kMaskedThreads) masked_kernel(const __grid_constant__ MaskedRows x) {
  for (int64_t task = blockIdx.x; task < x.tasks(); task += gridDim.x)
    x.run(task, int(threadIdx.x), kMaskedThreads, [] { __syncthreads(); });
}

// A block of threads an entry of a block_bias.
__global__ void __launch_bounds__(kMaskedThreads) masked_sums_kernel(const __grid_constant__ MaskedRows x) {
  __shared__ double room[kMaskedThreads];
  const int me = int(threadIdx.x), entries = x.problem.mask.blocks.bound;
  for (int e = int(blockIdx.x); e < entries; e += int(gridDim.x)) {
    room[me] = x.entry_gradient(e, me, kMaskedThreads);
    for (int step = kMaskedThreads / 2; step; step /= 2) {
      __syncthreads();
      if (me < step) room[me] += room[me + step];
    }
    if (!me) x.args.row<float>(Role::d_bias)[e] = float(room[0]);
    __syncthreads();
  }
}

Status said(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status::good();
  return Status::no(kernel, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

}  // namespace

Status scatter(int32_t* gpu, std::span<const Number> numbers, void* stream) {
  for (size_t first = 0; first < numbers.size(); first += kMost) {
    ScatterParams x{.to = gpu, .count = int(std::min<size_t>(kMost, numbers.size() - first)), .number = {}};
    std::copy_n(numbers.begin() + std::ptrdiff_t(first), x.count, x.number);
    scatter_kernel<<<1, kMost, 0, static_cast<cudaStream_t>(stream)>>>(x);
    if (Status s = said("scatter_kernel"); !s.ok()) return s;
  }
  return Status::good();
}

Status nsa_lengths(const NsaLengths& x, void* stream) {
  const Use use(x.used.device_index);
  if (!use.status.ok()) return use.status;
  const int blocks = int(ceil_div(int64_t(x.batch) + 1, kThreads));
  lengths_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  return said("nsa_lengths");
}

Status fill_tables(const ShardTables& x, int index, void* stream) {
  const Use use(index);
  if (!use.status.ok()) return use.status;
  const int64_t blocks = ceil_div(x.items(), kThreads);
  tables_kernel<<<unsigned(blocks < 64 ? blocks : 64), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  return said("tables_kernel");
}

Status cut_lists(const ListCut& x, int index, void* stream) {
  const Use use(index);
  if (!use.status.ok()) return use.status;
  lists_kernel<<<unsigned(x.batches * x.heads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  return said("lists_kernel");
}

namespace {

Status launch_masked(const void* kernel, Ready& ready, int64_t tasks, const MaskedRows& x, int device, void* stream) {
  const Use use(device);
  if (!use.status.ok()) return use.status;
  constexpr int64_t kMostBlocks = 1 << 20;
  return launch({.who = "masked_dense", .kernel = kernel, .ready = &ready,
                 .blocks = tasks < kMostBlocks ? tasks : kMostBlocks, .threads = kMaskedThreads, .device = device,
                 .stream = stream},
                x.problem, &x);
}

}  // namespace

Status fill_masked(const MaskedRows& x, int device, void* stream) {
  static Ready ready;
  return launch_masked(reinterpret_cast<const void*>(masked_kernel), ready, x.tasks(), x, device, stream);
}

Status sum_masked(const MaskedRows& x, int device, void* stream) {
  static Ready ready;
  const int64_t entries = x.problem.mask.blocks.bound;
  return launch_masked(reinterpret_cast<const void*>(masked_sums_kernel), ready, entries, x, device, stream);
}

}  // namespace attune::cuda
