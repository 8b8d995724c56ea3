// scatter() of runtime.h: the numbers travel as parameters of a kernel, so nothing waits and no memory of the host has
// to live until the GPU has read it, as it would behind a copy.
#include <algorithm>

#include <cuda_runtime.h>

#include "machine/cuda/runtime.h"

namespace attune::cuda {
namespace {

constexpr int kMost = 480;  // numbers a launch: parameters are at most 4 KB

struct Params {
  int32_t* to;
  int count;
  Number number[kMost];
};
static_assert(sizeof(Params) <= 4096);

__global__ void scatter_kernel(const __grid_constant__ Params x) {
  const int n = int(threadIdx.x);
  if (n < x.count) x.to[x.number[n].at] = x.number[n].value;
}

}  // namespace

Status scatter(int32_t* gpu, std::span<const Number> numbers, void* stream) {
  for (size_t first = 0; first < numbers.size(); first += kMost) {
    Params x{.to = gpu, .count = int(std::min<size_t>(kMost, numbers.size() - first)), .number = {}};
    std::copy_n(numbers.begin() + std::ptrdiff_t(first), x.count, x.number);
    scatter_kernel<<<1, kMost, 0, static_cast<cudaStream_t>(stream)>>>(x);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
      return Status::no("scatter_kernel: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  }
  return Status::good();
}

}  // namespace attune::cuda
