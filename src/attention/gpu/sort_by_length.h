// SPDX-License-Identifier: Apache-2.0
// Sorts items by length, longest first, so that a long item does not start when all others have ended. Lengths are
// classified by half powers of two only. Within a class, the items of a warp keep their order, so neighbours find each
// other's keys in L2.
#pragma once
#include <cstdint>

namespace attune::sm80 {

inline constexpr int kLengthClasses = 64;

__device__ inline int length_class(uint32_t length) {
  if (length < 2) return kLengthClasses - 1;
  const int top = 31 - __clz(int(length));
  return kLengthClasses - 2 - (2 * top + int(length >> (top - 1) & 1));
}

// Returns the next place of a class; -1 for lanes without a class. Called by all lanes of a warp; the lanes of a class
// share one atomic.
__device__ inline int take_place(int* next, int of_class) {
  const int lane = threadIdx.x % 32;
  const uint32_t same = __match_any_sync(~0u, of_class);
  const int leader = __ffs(int(same)) - 1;
  int first = 0;
  if (lane == leader && of_class >= 0) first = atomicAdd(next + of_class, __popc(same));
  return __shfl_sync(~0u, first, leader) + __popc(same & ((1u << lane) - 1));
}

// Called by one CTA of kThreads: calls put(place, find(n)) for each n below `count`. find() is called twice per item.
template <int kThreads, class Find, class Length, class Put>
__device__ void put_by_length(int count, Find find, Length length, Put put) {
  __shared__ int next[kLengthClasses];  // items per class, then the next place of each class
  for (int n = threadIdx.x; n < kLengthClasses; n += kThreads) next[n] = 0;
  __syncthreads();
  for (int first = 0; first < count; first += kThreads) {
    const int n = first + int(threadIdx.x);
    take_place(next, n < count ? length_class(length(find(n))) : -1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    constexpr int kLane = kLengthClasses / 32;
    int mine[kLane], sum = 0;
#pragma unroll
    for (int n = 0; n < kLane; ++n) mine[n] = next[threadIdx.x * kLane + n], sum += mine[n];
    int before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (int(threadIdx.x) >= step) before += other;
    }
    before -= sum;
#pragma unroll
    for (int n = 0; n < kLane; ++n) next[threadIdx.x * kLane + n] = before, before += mine[n];
  }
  for (int first = 0; first < count; first += kThreads) {
    __syncthreads();  // earlier items have their places
    const int n = first + int(threadIdx.x);
    const auto item = find(n < count ? n : count - 1);
    const int place = take_place(next, n < count ? length_class(length(item)) : -1);
    if (n < count) put(place, item);
  }
}

}  // namespace attune::sm80
