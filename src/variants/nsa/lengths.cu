// SPDX-License-Identifier: Apache-2.0
// lengths.h on a GPU: one thread per sequence.
#include "machine/cuda/launch.h"
#include "variants/nsa/lengths.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) lengths_kernel(const __grid_constant__ NsaLengths x) {
  const int b = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (b <= x.batch) nsa_lengths_of(x, b);
}

}  // namespace

Status nsa_lengths(const NsaLengths& x, void* stream) {
  const DeviceGuard use(x.used.device_index);
  if (!use.status.ok()) return use.status;
  const int blocks = int(ceil_div(int64_t(x.batch) + 1, kThreads));
  lengths_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  return last_error("nsa_lengths");
}

}  // namespace attune::cuda
