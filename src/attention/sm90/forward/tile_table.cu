// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/tile_table.h"

#include "attention/gpu/sort_by_length.h"
#include "machine/cuda/launcher.h"
#include "machine/sm80/dependent_launch.h"

namespace attune::sm90 {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

// Exclusive prefix sum over the CTA; `all` receives the total.
__device__ int sum_before(int mine, int& all) {
  __shared__ int of_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // the values of the previous call have been read
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  int before = 0;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += of_warp[w];
    all += of_warp[w];
  }
  return before + sum - mine;
}

struct Maker {
  const TableParams& x;

  // Tile n, in the order of `begin`.
  __device__ QueryTile tile(int n) const {
    const Problem& p = x.problem;
    int low = 0, high = p.batch;  // the last sequence that starts at or before n
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (x.table.begin[middle] <= n ? low : high) = middle;
    }
    const Sequence s = sequence(p, x.args, low);
    const int rest = n - x.table.begin[low], tiles = query_tiles(s, x.tile_q), head = rest / tiles;
    return query_tile(p, x.args, low, s, head, rest - head * tiles, x.tile_q, x.tile_k);
  }

  __device__ uint32_t length(const QueryTile& t) const {
    return uint32_t(t.last + 1 - (x.problem.mask.blocks.q ? 0 : t.first));
  }

  __device__ void run() const {
    sm80::admit_next();  // the next kernel waits until the table is ready
    const Problem& p = x.problem;
    int count = 0;
    for (int first = 0; first < p.batch; first += kThreads) {
      const int b = first + int(threadIdx.x);
      int mine = 0, all;
      if (b < p.batch) mine = query_tiles(sequence(p, x.args, b), x.tile_q) * (p.mask.blocks.q ? p.heads_q : 1);
      const int before = sum_before(mine, all);
      if (b < p.batch) x.table.begin[b] = count + before;
      count += all;
    }
    if (threadIdx.x == 0) x.table.begin[p.batch] = count;
    __syncthreads();
    sm80::put_by_length<kThreads>(
        count, [&](int n) { return tile(n); }, [&](const QueryTile& t) { return length(t); },
        [&](int place, const QueryTile& t) { x.table.tile[place] = t; });
  }
};

__global__ void __launch_bounds__(kThreads) table_kernel(const __grid_constant__ TableParams x) { Maker{x}.run(); }

__global__ void __launch_bounds__(kThreads) list_table_kernel(const __grid_constant__ ListTableParams x) {
  sm80::admit_next();
  if (threadIdx.x == 0) *x.count = x.tiles.count;
  sm80::put_by_length<kThreads>(
      x.tiles.count - x.ahead, [&](int n) { return x.tiles.tile(x.ahead + n); },
      [](const QueryTile& t) { return uint32_t(t.last + 1); },
      [&](int place, const QueryTile& t) { x.table[x.ahead + place] = t; });
}

}  // namespace

Status make_table(const cuda::Launcher& launch, const TableParams& x) {
  static constinit cuda::SharedMemoryOptIn ready;
  return launch({.kernel = cuda::address(table_kernel), .ready = &ready, .blocks = 1, .threads = kThreads}, x);
}

Status make_table(std::string_view who, const TableParams& x, int device, Stream stream) {
  const cuda::Launcher launch(who, x.problem, device, stream);
  return launch.status.ok() ? make_table(launch, x) : launch.status;
}

Status make_table(const cuda::Launcher& launch, const ListTableParams& x) {
  static constinit cuda::SharedMemoryOptIn ready;
  return launch({.kernel = cuda::address(list_table_kernel), .ready = &ready, .blocks = 1, .threads = kThreads}, x);
}

}  // namespace attune::sm90
