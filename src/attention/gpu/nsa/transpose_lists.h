// SPDX-License-Identifier: Apache-2.0
// Transposes the lists of selected attention: the kernels, their memory and their launch.
#pragma once
#include <algorithm>

#include "attention/gpu/nsa/selected_lists.h"
#include "core/variant/nsa.h"
#include "core/workspace.h"
#include "machine/cuda/launcher.h"

namespace attune::sm80 {

// Calls use() for every list entry that counts; a thread has one token and one KV head.
template <class F>
__device__ inline void each_choice(const SelectedListParams& params, F use) {
  const SelectedParams& x = params.x;
  const int64_t n = blockIdx.x * 256ll + threadIdx.x, heads = x.problem.heads_kv;
  const int64_t token = n / heads % x.problem.len_q;
  const int head = int(n % heads);
  const int64_t b = n / heads / x.problem.len_q;
  if (b >= x.problem.batch) return;
  const Sequence s = x.sequence_of(int(b));
  if (token >= s.len_q) return;
  const int32_t* list = reinterpret_cast<const int32_t*>(x.blocks.row(s.q_batch, s.q_first + token, head));
  const int seen = keys_seen(s, int(token));
  const int64_t first = (b * heads + head) * params.lists.blocks;
  int before = -1;
  for (int i = 0; i < x.n; ++i) {
    const int m = list[i];
    if (m <= before) continue;
    before = m;
    if (int64_t(m) * x.size < seen) use(int(first + m), int(token));
  }
}
static __global__ void __launch_bounds__(256) selected_count_kernel(const __grid_constant__ SelectedListParams params) {
  each_choice(params, [&](int list, int) { atomicAdd(params.lists.count + list, 1); });
}
static __global__ void __launch_bounds__(256) selected_fill_kernel(const __grid_constant__ SelectedListParams params) {
  each_choice(params, [&](int list, int token) {
    params.lists.unsorted[atomicAdd(params.lists.cursor + list, 1)] = token;
  });
}

// Exclusive prefix sums: one CTA, one list per thread.
static __global__ void __launch_bounds__(1024)
    selected_place_kernel(const __grid_constant__ SelectedListParams params) {
  const SelectedLists& x = params.lists;
  __shared__ int3 warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto sum = [](int3 a, int3 b) { return int3{a.x + b.x, a.y + b.y, a.z + b.z}; };
  int3 base{};  // running totals of tokens, chunks and partial results
  for (int64_t start = 0; start < x.lists; start += 1024) {
    const int64_t list = start + threadIdx.x;
    const int count = list < x.lists ? x.count[list] : 0, chunks = (count + x.chunk - 1) / x.chunk;
    const int3 own{count, chunks, chunks > 1 ? chunks : 0};
    int3 y = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int3 z{__shfl_up_sync(~0u, y.x, step), __shfl_up_sync(~0u, y.y, step), __shfl_up_sync(~0u, y.z, step)};
      if (lane >= step) y = sum(y, z);
    }
    if (lane == 31) warps[warp] = y;
    __syncthreads();
    int3 all{};
    for (int n = 0; n < 32; ++n) {
      if (n == warp) y = sum(y, all);
      all = sum(all, warps[n]);
    }
    y = sum(y, base);
    if (list < x.lists) {
      const int3 first{y.x - own.x, y.y - own.y, y.z - own.z};
      x.begin[list] = x.cursor[list] = first.x, x.slots[list] = {first.z, own.z};
      for (int n = 0; n < chunks; ++n)
        x.chunks[first.y + n] = {int(list), first.x + n * x.chunk, min(x.chunk, count - n * x.chunk),
                                 own.z ? first.z + n : -1};
    }
    base = sum(base, all);
    __syncthreads();
  }
  if (threadIdx.x == 0) *x.total = base.y;
}

// A CTA sorts one list. Its tokens are distinct, so it sets one bit each in a bitmap and reads that in order.
static __global__ void __launch_bounds__(256) selected_sort_kernel(const __grid_constant__ SelectedListParams params) {
  constexpr int kWords = 8192;  // 262,144 tokens at once
  __shared__ uint32_t map[kWords];
  __shared__ int before[256];
  const SelectedLists& x = params.lists;
  const int count = x.count[blockIdx.x], begin = x.begin[blockIdx.x];
  if (!count) return;
  int written = begin;
  for (int64_t window = 0; window < params.x.problem.len_q; window += kWords * 32) {
    const int words = int(min(int64_t(kWords), (params.x.problem.len_q - window + 31) / 32));
    const int own = (words + 255) / 256;  // a thread's words are contiguous
    for (int n = threadIdx.x; n < own * 256; n += 256) map[n] = 0;
    __syncthreads();
    for (int n = threadIdx.x; n < count; n += 256) {
      const int64_t token = x.unsorted[begin + n] - window;
      if (token >= 0 && token < int64_t(words) * 32) atomicOr(map + token / 32, 1u << token % 32);
    }
    __syncthreads();
    int found = 0;
    for (int n = 0; n < own; ++n) found += __popc(map[threadIdx.x * own + n]);
    before[threadIdx.x] = found;
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
      const int other = threadIdx.x >= step ? before[threadIdx.x - step] : 0;
      __syncthreads();
      before[threadIdx.x] += other;
      __syncthreads();
    }
    int to = written + before[threadIdx.x] - found;
    for (int n = 0; n < own; ++n)
      for (uint32_t bits = map[threadIdx.x * own + n]; bits; bits &= bits - 1)
        x.tokens[to++] = int(window) + (threadIdx.x * own + n) * 32 + __ffs(bits) - 1;
    written += before[255];
    __syncthreads();
  }
}

// Upper bounds, from the bounds of a problem. A token chooses a block at most once.
struct ListBounds {
  int64_t tokens, blocks, lists, pairs;

  ListBounds(const Problem& p, const Nsa& nsa)
      : tokens(int64_t(p.batch) * p.heads_kv * p.len_q), blocks(ceil_div(p.len_k, nsa.s)),
        lists(int64_t(p.batch) * p.heads_kv * blocks), pairs(tokens * std::min<int64_t>(nsa.n, blocks)) {}
  // At most one chunk of a list is not full.
  int64_t chunks(int64_t chunk) const { return pairs / chunk + std::min(lists, pairs); }
  // A list of several chunks has a full one, so its chunks number at most twice its full ones.
  int64_t partials(int64_t chunk) const { return 2 * (pairs / chunk); }
};

inline SelectedLists carve_lists(Workspace& ws, const ListBounds& most, int64_t chunk) {
  const size_t lists = size_t(most.lists), pairs = size_t(most.pairs);
  SelectedLists x{};
  x.lists = int(most.lists), x.blocks = int(most.blocks), x.chunk = int(chunk);
  x.count = ws.take<int>(lists), x.begin = ws.take<int>(lists), x.cursor = ws.take<int>(lists);
  x.slots = ws.take<int2>(lists);
  x.unsorted = ws.take<int>(pairs), x.tokens = ws.take<int>(pairs);
  x.chunks = ws.take<int4>(size_t(most.chunks(chunk))), x.total = ws.take<int>(1);
  return x;
}

inline Status transpose_lists(const cuda::Launcher& launcher, const SelectedParams& x, const SelectedLists& lists) {
  const Problem& p = x.problem;
  if (Status s = launcher.zero(lists.count, size_t(lists.lists) * sizeof(int)); !s.ok()) return s;
  const SelectedListParams params{x, lists};
  const int64_t each = ceil_div(int64_t(p.batch) * p.heads_kv * p.len_q, 256);
  static constinit cuda::SharedMemoryOptIn ready[4];
  const struct { void (*kernel)(SelectedListParams); int64_t blocks; int threads; } steps[] = {
      {selected_count_kernel, each, 256},
      {selected_place_kernel, 1, 1024},
      {selected_fill_kernel, each, 256},
      {selected_sort_kernel, lists.lists, 256}};
  for (int n = 0; n < 4; ++n)
    if (Status s = launcher({.kernel = cuda::address(steps[n].kernel), .ready = &ready[n], .blocks = steps[n].blocks,
                             .threads = steps[n].threads},
                            params);
        !s.ok())
      return s;
  return Status::good();
}

}  // namespace attune::sm80
