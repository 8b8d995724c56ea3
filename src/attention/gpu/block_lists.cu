// SPDX-License-Identifier: Apache-2.0
// Small kernels that build block lists: a warp counts a row, a CTA sums the rows of a list, one CTA places the lists
// one after another, and a warp writes a row. The list by key block is built by one CTA per list. It walks the rows in
// order, so entries ascend without a sort, whatever the order within the rows.
#include "attention/gpu/block_lists.h"
#include "machine/cuda/launcher.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32;
constexpr int kScanWidth = 512;

__device__ void add(const BlockBuild& x, BlockCount which, int64_t n) {
  if (x.counts && n) atomicAdd(reinterpret_cast<unsigned long long*>(x.counts + int(which)), (unsigned long long)n);
}

// Inclusive prefix sum of `value`; all kScanWidth threads call it. `total`: sum over all threads.
__device__ int64_t sum_before(int64_t value, int64_t& total) {
  __shared__ int64_t of_warp[kScanWidth / kWarp];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == kWarp - 1) of_warp[warp] = value;
  __syncthreads();
  int64_t before = 0;
  total = 0;
  for (int w = 0; w < kScanWidth / kWarp; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  __syncthreads();
  return value + before;
}

// begin[row + 1] = entries of the row; for a row with random entries, the blocks visible to it.
__global__ void __launch_bounds__(kThreads) count_rows(const __grid_constant__ BlockBuild x) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (at >= int64_t(x.lists()) * x.rows) return;
  const int list = int(at / x.rows), row = int(at % x.rows);
  const BlockRow r(x, x.grid(list), list, row);
  const Rows shown = r.shown();
  int found = 0;
  if (x.by_count(list)) {
    found = x.counted(shown.last - shown.first);
  } else {
    for (int j = shown.first + lane; j < shown.last; j += kWarp) found += r.active(j);
    for (int step = kWarp / 2; step; step /= 2) found += __shfl_xor_sync(~0u, found, step);
  }
  if (lane) return;
  x.begin(Role::block_begin, list)[row + 1] = found;
  add(x, BlockCount::shown, shown.last - shown.first);
}

// begin[row + 1] = entries of this row and all before it.
__global__ void __launch_bounds__(kScanWidth) sum_rows(const __grid_constant__ BlockBuild x) {
  const int list = int(blockIdx.x);
  int32_t* begin = x.begin(Role::block_begin, list);
  int64_t before = 0;
  for (int first = 0; first < x.rows; first += kScanWidth) {
    const int row = first + int(threadIdx.x);
    int64_t total;
    const int64_t sum = before + sum_before(row < x.rows ? begin[row + 1] : 0, total);
    before += total;
    if (row < x.rows) begin[row + 1] = int32_t(x.draws(list) ? x.pattern.drawn(sum) : sum);
  }
  if (!threadIdx.x) begin[0] = 0;
}

// Places the lists one after another, truncated at the bound.
__global__ void __launch_bounds__(kScanWidth) place_lists(const __grid_constant__ BlockBuild x) {
  int64_t before = 0;
  for (int list = 0; list < x.lists(); ++list) {
    int32_t* begin = x.begin(Role::block_begin, list);
    const int64_t total = begin[x.rows];
    __syncthreads();  // every thread has read it
    for (int row = int(threadIdx.x); row < x.rows; row += kScanWidth) begin[row + 1] = x.limit(before + begin[row + 1]);
    if (!threadIdx.x) begin[0] = x.limit(before);
    before += total;
  }
  if (threadIdx.x) return;
  const int64_t kept = x.limit(before);
  add(x, BlockCount::active, kept);
  add(x, BlockCount::dropped, before - kept);
}

__global__ void __launch_bounds__(kThreads) write_rows(const __grid_constant__ BlockBuild x) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (at >= int64_t(x.lists()) * x.rows) return;
  const int list = int(at / x.rows), row = int(at % x.rows);
  const int32_t* begin = x.begin(Role::block_begin, list);
  int32_t* column = x.entries(Role::block_column);
  int to = x.limit(begin[row]);
  const int end = x.limit(begin[row + 1]);
  if (x.counts && !lane)
    atomicMax(reinterpret_cast<unsigned long long*>(x.counts + int(BlockCount::longest)),
              (unsigned long long)(end - to));
  const BlockRow r(x, x.grid(list), list, row, end - to);
  for (int first = r.shown().first; first < r.shown().last; first += kWarp) {
    const int j = first + lane;
    const bool mine = j < r.shown().last && r.active(j);
    const unsigned all = __ballot_sync(~0u, mine);
    const int place = to + __popc(all & ((1u << lane) - 1));
    if (mine && place < end) column[place] = j;
    to += __popc(all);
  }
}

// For lists given by the caller: entries outside the band, or not a valid block, do not count.
__global__ void __launch_bounds__(kThreads) count_lists(const __grid_constant__ BlockBuild x) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  if (at >= int64_t(x.lists()) * x.rows) return;
  const int list = int(at / x.rows), row = int(at % x.rows);
  const int32_t *begin = x.begin(Role::block_begin, list), *column = x.entries(Role::block_column);
  const Rows shown = x.grid(list).shown(row);
  const int from = x.limit(begin[row]), to = x.limit(begin[row + 1]), kept = to > from ? to - from : 0;
  int found = 0;
  for (int n = from + lane; n < to; n += kWarp) found += column[n] >= shown.first && column[n] < shown.last;
  for (int step = kWarp / 2; step; step /= 2) found += __shfl_xor_sync(~0u, found, step);
  if (lane) return;
  const int64_t asked = int64_t(begin[row + 1]) - begin[row];
  add(x, BlockCount::active, found);
  add(x, BlockCount::shown, shown.last - shown.first);
  add(x, BlockCount::dropped, asked > kept ? asked - kept : 0);
  atomicMax(reinterpret_cast<unsigned long long*>(x.counts + int(BlockCount::longest)), (unsigned long long)kept);
}

// Builds the same list by key block. begin_k[j + 1] is the position of the next entry of block j, so it ends as the
// start of the next block.
__global__ void __launch_bounds__(kScanWidth) transpose(const __grid_constant__ BlockBuild x) {
  const int list = int(blockIdx.x);
  const int32_t* begin = x.begin(Role::block_begin, list);
  const int32_t* column = x.entries(Role::block_column);
  int32_t *begin_k = x.begin(Role::block_begin_k, list), *row_k = x.entries(Role::block_row_k);
  const int first = x.limit(begin[0]), last = x.limit(begin[x.rows]);
  for (int j = int(threadIdx.x); j <= x.columns; j += kScanWidth) begin_k[j] = 0;
  __syncthreads();
  for (int n = first + int(threadIdx.x); n < last; n += kScanWidth)
    if (const int j = column[n]; j >= 0 && j < x.columns) atomicAdd(begin_k + j + 1, 1);
  __syncthreads();
  int64_t before = first;
  for (int from = 0; from < x.columns; from += kScanWidth) {
    const int j = from + int(threadIdx.x);
    const int mine = j < x.columns ? begin_k[j + 1] : 0;
    int64_t total;
    const int64_t sum = before + sum_before(mine, total);
    before += total;
    if (j < x.columns) begin_k[j + 1] = x.limit(sum - mine);
  }
  if (!threadIdx.x) begin_k[0] = first;
  __syncthreads();
  for (int row = 0; row < x.rows; ++row) {
    const int end = x.limit(begin[row + 1]);
    for (int n = x.limit(begin[row]) + int(threadIdx.x); n < end; n += kScanWidth)
      if (const int j = column[n]; j >= 0 && j < x.columns)
        if (const int place = begin_k[j + 1]; place < last) row_k[place] = row, begin_k[j + 1] = place + 1;
    __syncthreads();
  }
}

}  // namespace

Status build_blocks(const BlockBuild& x, int device, void* stream) {
  static SharedMemoryOptIn count_ready, lists_ready, sum_ready, place_ready, write_ready, transpose_ready;
  const Launcher launcher("blocks", x.problem, device, stream);
  if (!launcher.status.ok()) return launcher.status;
  const auto launch = [&](auto* kernel, SharedMemoryOptIn& ready, int64_t blocks, int threads) {
    return launcher({.kernel = address(kernel), .ready = &ready, .blocks = blocks, .threads = threads}, x);
  };
  const int64_t warps = ceil_div(int64_t(x.lists()) * x.rows * kWarp, kThreads);
  if (x.counts)
    if (Status s = launcher.zero(x.counts, int(BlockCount::count) * sizeof(int64_t)); !s.ok()) return s;
  if (x.origin == BlockOrigin::lists && x.counts)
    if (Status s = launch(count_lists, lists_ready, warps, kThreads); !s.ok()) return s;
  if (x.origin != BlockOrigin::lists) {
    if (Status s = launch(count_rows, count_ready, warps, kThreads); !s.ok()) return s;
    if (Status s = launch(sum_rows, sum_ready, x.lists(), kScanWidth); !s.ok()) return s;
    if (Status s = launch(place_lists, place_ready, 1, kScanWidth); !s.ok()) return s;
  }
  if (x.origin == BlockOrigin::best) return Status::good();
  if (x.origin != BlockOrigin::lists)
    if (Status s = launch(write_rows, write_ready, warps, kThreads); !s.ok()) return s;
  return x.args.given(Role::block_begin_k) ? launch(transpose, transpose_ready, x.lists(), kScanWidth) : Status::good();
}

}  // namespace attune::cuda
