// SPDX-License-Identifier: Apache-2.0
// Fills, on a GPU, the bias that represents a mask.
#include "machine/cuda/launch.h"
#include "variants/masked/gpu.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 256;

// One CTA per row of the bias.
__global__ void __launch_bounds__(kThreads) masked_kernel(const __grid_constant__ MaskedRows x) {
  for (int64_t task = blockIdx.x; task < x.tasks(); task += gridDim.x)
    x.run(task, int(threadIdx.x), kThreads, [] { __syncthreads(); });
}

// One CTA per entry of a block_bias.
__global__ void __launch_bounds__(kThreads) masked_sums_kernel(const __grid_constant__ MaskedRows x) {
  __shared__ double room[kThreads];
  const int me = int(threadIdx.x), entries = x.problem.mask.blocks.bound;
  for (int e = int(blockIdx.x); e < entries; e += int(gridDim.x)) {
    room[me] = x.entry_gradient(e, me, kThreads);
    for (int step = kThreads / 2; step; step /= 2) {
      __syncthreads();
      if (me < step) room[me] += room[me + step];
    }
    if (!me) x.args.row<float>(Role::d_bias)[e] = float(room[0]);
    __syncthreads();
  }
}

Status launch_masked(const void* kernel, SharedMemoryOptIn& ready, int64_t tasks, const MaskedRows& x, int device,
                     void* stream) {
  const DeviceGuard use(device);
  if (!use.status.ok()) return use.status;
  constexpr int64_t kMostBlocks = 1 << 20;
  return launch({.who = "masked_dense", .kernel = kernel, .ready = &ready,
                 .blocks = tasks < kMostBlocks ? tasks : kMostBlocks, .threads = kThreads, .device = device,
                 .stream = stream},
                x.problem, &x);
}

}  // namespace

Status fill_masked(const MaskedRows& x, int device, void* stream) {
  static SharedMemoryOptIn ready;
  return launch_masked(reinterpret_cast<const void*>(masked_kernel), ready, x.tasks(), x, device, stream);
}

Status sum_masked(const MaskedRows& x, int device, void* stream) {
  static SharedMemoryOptIn ready;
  const int64_t entries = x.problem.mask.blocks.bound;
  return launch_masked(reinterpret_cast<const void*>(masked_sums_kernel), ready, entries, x, device, stream);
}

}  // namespace attune::cuda
