// What surrounds the large kernels of the backward of selected attention: the lists before them, and the sum of parts
// after them.
#pragma once
#include "attention/selected_backward.sm80.kernels.h"

namespace attune::sm80 {

// What follows for every list entry that counts: a thread has one token and one head of keys.
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
  const int seen = BandWalk{s.band, s.len_k, 1}.last_key(token);
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

// Sums of what comes before: one block, a thread a list.
static __global__ void __launch_bounds__(1024)
    selected_place_kernel(const __grid_constant__ SelectedListParams params) {
  const SelectedLists& x = params.lists;
  __shared__ int3 warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto sum = [](int3 a, int3 b) { return int3{a.x + b.x, a.y + b.y, a.z + b.z}; };
  int3 base{};  // tokens, chunks and parts so far
  for (int64_t start = 0; start < x.lists; start += 1024) {
    const int64_t list = start + threadIdx.x;
    const int count = list < x.lists ? x.count[list] : 0, pieces = (count + x.chunk - 1) / x.chunk;
    const int3 own{count, pieces, pieces > 1 ? pieces : 0};
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
      for (int n = 0; n < pieces; ++n)
        x.chunks[first.y + n] = {int(list), first.x + n * x.chunk, min(x.chunk, count - n * x.chunk),
                                 own.z ? first.z + n : -1};
    }
    base = sum(base, all);
    __syncthreads();
  }
  if (threadIdx.x == 0) *x.total = base.y;
}

// A block sorts one list: its tokens are different numbers, so they are bits of a map, which is read in order.
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
    const int own = (words + 255) / 256;  // a thread's words follow each other
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

// The parts of lists that have several chunks, added in their order: a block has one list and piece.
template <class T>
__global__ void __launch_bounds__(256) selected_parts_kernel(const __grid_constant__ SelectedKeysParams y) {
  const SelectedParams& x = y.x;
  const int list = int(blockIdx.x) / y.pieces, piece = int(blockIdx.x) % y.pieces;
  const int2 slots = y.lists.slots[list];
  if (!slots.y) return;
  const int unit = list / y.lists.blocks, b = int(x.heads_kv.divide(unit)), head = int(x.heads_kv.rest(unit));
  const Sequence s = x.sequence_of(b);
  const int64_t begin = int64_t(list % y.lists.blocks) * x.size, first = begin + piece * kKeysOfBlock;
  const int keys = clamp(begin + x.size, 0, s.len_k) - int(first);
  const int wide = x.problem.dim_qk + x.problem.dim_v;
  for (int n = threadIdx.x; n < min(keys, kKeysOfBlock) * wide / 2; n += 256) {
    const int row = n / (wide / 2), column = n % (wide / 2) * 2;
    const bool of_k = column < x.problem.dim_qk;
    const Tensor& t = x.args[of_k ? Role::dk : Role::dv];
    if (!t.data) continue;
    float2 sum{};
#pragma unroll 4
    for (int part = 0; part < slots.y; ++part) {
      const float2 more = *reinterpret_cast<const float2*>(
          y.parts + ((int64_t(slots.x + part) * y.pieces + piece) * kKeysOfBlock + row) * wide + column);
      sum = {sum.x + more.x, sum.y + more.y};
    }
    const int at = of_k ? column : column - x.problem.dim_qk;
    char* to = row_address(t, s.k_batch, s.k_first + first + row, head) + at * size_of(t.dtype);
    if (t.dtype == DType::f32) *reinterpret_cast<float2*>(to) = sum;
    else *reinterpret_cast<uint32_t*>(to) = pack<T>(sum.x, sum.y);
  }
}

}  // namespace attune::sm80
