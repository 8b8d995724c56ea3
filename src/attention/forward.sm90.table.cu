#include "attention/forward.sm90.table.h"

#include "machine/cuda/launch.h"
#include "machine/sm80/order.h"

namespace attune::sm90 {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kClasses = 64;

// What comes before this thread's number, and in `all` the sum over the block.
__device__ int sum_before(int mine, int& all) {
  __shared__ int of_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // those of the call before are read
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

// The next place of a class, by all lanes of a warp; -1: of none. Lanes of a class ask once.
__device__ int take_place(int* next, int of_class) {
  const int lane = threadIdx.x % 32;
  const uint32_t same = __match_any_sync(~0u, of_class);
  const int leader = __ffs(int(same)) - 1;
  int first = 0;
  if (lane == leader && of_class >= 0) first = atomicAdd(next + of_class, __popc(same));
  return __shfl_sync(~0u, first, leader) + __popc(same & ((1u << lane) - 1));
}

struct Maker {
  const TableParams& x;

  // Tile n of those that `begin` counts.
  __device__ QueryTile tile(int n) const {
    const Problem& p = x.problem;
    int low = 0, high = p.batch;  // the last sequence that begins at n or before
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (x.table.begin[middle] <= n ? low : high) = middle;
    }
    const Sequence s = sequence(p, x.args, low);
    const int rest = n - x.table.begin[low], tiles = query_tiles(s, x.tile_q), head = rest / tiles;
    return query_tile(p, x.args, low, s, head, rest - head * tiles, x.tile_q, x.tile_k);
  }

  // Lengths are sorted by half powers of two only; within a class tiles keep their order, in which neighbours find each
  // other's keys in the second-level cache.
  __device__ int class_of(const QueryTile& t) const {
    const int length = t.last + 1 - (x.problem.mask.blocks.q ? 0 : t.first);
    if (length < 2) return kClasses - 1;
    const int top = 31 - __clz(length);
    return kClasses - 2 - (2 * top + (length >> (top - 1) & 1));
  }

  __device__ void run() const {
    sm80::admit_next();  // it waits until the table is there
    const Problem& p = x.problem;
    __shared__ int next[kClasses];  // how many of a class there are, then the place of its next
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
    if (threadIdx.x < kClasses) next[threadIdx.x] = 0;
    __syncthreads();
    for (int first = 0; first < count; first += kThreads) {
      const int n = first + int(threadIdx.x);
      take_place(next, n < count ? class_of(tile(n)) : -1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int before = 0;
      for (int& n : next) {
        const int of_class = n;
        n = before, before += of_class;
      }
    }
    for (int first = 0; first < count; first += kThreads) {
      __syncthreads();  // those before it have their places
      const int n = first + int(threadIdx.x);
      QueryTile t;
      if (n < count) t = tile(n);
      const int place = take_place(next, n < count ? class_of(t) : -1);
      if (n < count) x.table.tile[place] = t;
    }
  }
};

__global__ void __launch_bounds__(kThreads) table_kernel(const __grid_constant__ TableParams x) { Maker{x}.run(); }

}  // namespace

Status make_table(std::string_view who, const TableParams& x, int device, Stream stream) {
  static constinit cuda::Ready ready;
  return cuda::launch({.who = who,
                       .kernel = reinterpret_cast<const void*>(table_kernel),
                       .ready = &ready,
                       .blocks = 1,
                       .threads = kThreads,
                       .device = device,
                       .stream = stream},
                      x.problem, &x);
}

}  // namespace attune::sm90
