#include <cuda_runtime.h>

#include "machine/cuda/ring.h"
#include "machine/cuda/runtime.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void tables_kernel(const __grid_constant__ ShardTables x) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < x.items(); n += step) x.fill(n);
}

}  // namespace

Status fill_tables(const ShardTables& x, int index, void* stream) {
  const Use use(index);
  if (!use.status.ok()) return use.status;
  const int64_t blocks = ceil_div(x.items(), kThreads);
  tables_kernel<<<unsigned(blocks < 64 ? blocks : 64), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status::good();
  return Status::no("tables_kernel: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

}  // namespace attune::cuda
