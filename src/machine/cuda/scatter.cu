// SPDX-License-Identifier: Apache-2.0
// scatter() of runtime.h: writes a few numbers from the host in stream order.
#include <algorithm>

#include "machine/cuda/launch.h"

namespace attune::cuda {
namespace {

// Numbers are kernel parameters, so nothing waits, and no host memory must stay valid until the GPU has read it, as
// with a copy.
constexpr int kMost = 480;  // numbers per launch: parameters take at most 4 KB

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

}  // namespace

Status scatter(int32_t* gpu, std::span<const Number> numbers, void* stream) {
  for (size_t first = 0; first < numbers.size(); first += kMost) {
    ScatterParams x{.to = gpu, .count = int(std::min<size_t>(kMost, numbers.size() - first)), .number = {}};
    std::copy_n(numbers.begin() + std::ptrdiff_t(first), x.count, x.number);
    scatter_kernel<<<1, kMost, 0, static_cast<cudaStream_t>(stream)>>>(x);
    if (Status s = last_error("scatter_kernel"); !s.ok()) return s;
  }
  return Status::good();
}

}  // namespace attune::cuda
