// SPDX-License-Identifier: Apache-2.0
// Combines the KV splits of a decode into rows: one row per CTA; each thread adds four columns of every n-th split. It
// is a separate kernel rather than the last CTA of the first kernel, whose counters would have to be cleared before
// every run. It launches while the first kernel ends and runs its code once before it waits, so that the instructions
// are cached by then. The benefit of neither has been measured separately.
#pragma once
#include "attention/sm80/decode/kernel.h"
#include "machine/cuda/launcher.h"

namespace attune::sm80 {

constexpr int kCombineThreads = 256;

template <int Columns>  // threads per row
struct DecodeCombine {
  static constexpr int kSlices = kCombineThreads / Columns, kAtOnce = 8;

  const DecodeParams& x;
  const Sequence& s;
  const int b, head, query;
  float* const weight;    // [kMostSplits]
  float2* const factors;  // of the combined row and of the previous result
  float4* const sums;     // [kCombineThreads]

  // Called by one warp: computes the weights of the splits and finishes the row.
  __device__ void weigh(int splits, bool real) const {
    const int lane = threadIdx.x;
    float lse[kMostSplits / 32], top = -INFINITY, sum = 0.f;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
      const int split = i * 32 + lane;
      lse[i] = split < splits ? __ldcg(x.partial_lse + x.partial_row(split, b, head, query)) : -INFINITY;
      top = fmaxf(top, lse[i]);
    }
#pragma unroll
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    const float shift = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) lse[i] = expf(lse[i] - shift), sum += lse[i];
#pragma unroll
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float each = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) weight[i * 32 + lane] = lse[i] * each;
    const float finished = sum == 0.f ? -INFINITY : top + logf(sum);
    if (lane == 0 && real) {
      const RowEnd end = x.end_row(s, head, query, finished);
      *factors = {end.now, end.before};
    }
  }

  __device__ void run(int splits, bool real) const {
    const int column = threadIdx.x % Columns * 4, slice = threadIdx.x / Columns;
    float4 y{};
    int first = slice;
    do {
      float4 partial[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int split = first + i * kSlices;
        partial[i] = {};
        if (split < splits && column < x.dim_v)
          partial[i] = __ldcg(reinterpret_cast<const float4*>(
              x.partial_out + x.partial_row(split, b, head, query) * x.dim_v + column));
      }
      if (first == slice) {
        if (threadIdx.x < 32) weigh(splits, real);
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float w = weight[min(first + i * kSlices, kMostSplits - 1)];
        y = {y.x + w * partial[i].x, y.y + w * partial[i].y, y.z + w * partial[i].z, y.w + w * partial[i].w};
      }
      first += kAtOnce * kSlices;
    } while (first - slice < splits);
    sums[threadIdx.x] = y;
    __syncthreads();
    if (slice == 0) {
#pragma unroll
      for (int i = 1; i < kSlices; ++i) {
        const float4 z = sums[i * Columns + threadIdx.x];
        y = {y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w};
      }
      if (real && column < x.dim_v) x.write(s, head, query, column, y, factors->x, factors->y);
    }
  }
};

template <int Columns>
__global__ void __launch_bounds__(kCombineThreads) decode_combine_kernel(const __grid_constant__ DecodeParams params) {
  __shared__ float weight[kMostSplits];
  __shared__ float2 factors;
  __shared__ float4 sums[kCombineThreads];
  uint32_t n = blockIdx.x;
  const int query = int(n % params.most_q);
  n /= params.most_q;
  const int head = int(n % params.problem.heads_q), b = int(n / params.problem.heads_q);
  const Sequence s = params.sequence_of(b);
  const DecodeCombine<Columns> combine{params, s, b, head, query, weight, &factors, sums};
#pragma unroll 1
  for (int real = 0; real < 2; ++real) {
    if (real) wait_for_previous();
    if (real && query >= s.len_q) return;
    combine.run(real ? int(params.splits.by) : 0, real);
    __syncthreads();
  }
}

inline Status combine_splits(const cuda::Launcher& launcher, const DecodeParams& x, int arch) {
  static constinit cuda::SharedMemoryOptIn ready;
  const auto kernel = x.dim_v <= 64    ? decode_combine_kernel<16>
                      : x.dim_v <= 128 ? decode_combine_kernel<32>
                                       : decode_combine_kernel<64>;
  return launcher({.kernel = cuda::address(kernel), .ready = &ready,
                   .blocks = int64_t(x.problem.batch) * x.problem.heads_q * x.most_q, .threads = kCombineThreads,
                   .dependent = supports_dependent_launch(arch)},
                  x);
}

}  // namespace attune::sm80
