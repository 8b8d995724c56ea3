// A block of threads a row of the bias.
#include "machine/cuda/launch.h"
#include "machine/cuda/masked.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) masked_kernel(const __grid_constant__ MaskedRows x) {
  for (int64_t task = blockIdx.x; task < x.tasks(); task += gridDim.x)
    x.run(task, int(threadIdx.x), kThreads, [] { __syncthreads(); });
}

}  // namespace

Status fill_masked(const MaskedRows& x, int device, void* stream) {
  static Ready ready;
  const Use use(device);
  if (!use.status.ok()) return use.status;
  constexpr int64_t kMostBlocks = 1 << 20;
  return launch({.who = "masked_dense", .kernel = reinterpret_cast<const void*>(masked_kernel), .ready = &ready,
                 .blocks = x.tasks() < kMostBlocks ? x.tasks() : kMostBlocks, .threads = kThreads, .device = device,
                 .stream = stream},
                x.problem, &x);
}

}  // namespace attune::cuda
