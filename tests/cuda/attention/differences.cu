// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/attention/differences.h"

#include <cuda_runtime.h>

namespace attune {
namespace {

__global__ void count_kernel(const unsigned char* a, const unsigned char* b, size_t bytes, unsigned long long* count) {
  const size_t thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x, threads = size_t(gridDim.x) * blockDim.x;
  const auto* wide_a = reinterpret_cast<const unsigned*>(a);
  const auto* wide_b = reinterpret_cast<const unsigned*>(b);
  unsigned long long found = 0;
  for (size_t n = thread; n < bytes / 4; n += threads)
    found += unsigned(__popc(__vcmpne4(wide_a[n], wide_b[n]))) / 8;
  for (size_t n = bytes / 4 * 4 + thread; n < bytes; n += threads) found += a[n] != b[n];
  if (found) atomicAdd(count, found);
}

}  // namespace

Status count_differences(const void* a, const void* b, size_t bytes, unsigned long long* count, void* stream) {
  constexpr int kBlocks = 264, kThreads = 256;
  count_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const unsigned char*>(a), static_cast<const unsigned char*>(b), bytes, count);
  const cudaError_t error = cudaPeekAtLastError();
  return error == cudaSuccess ? Status::good() : Status::no("count_differences: ", cudaGetErrorString(error));
}

}  // namespace attune
