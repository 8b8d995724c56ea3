// Starting kernels: for .cu files. A backend makes its GPU the current one, places its workspace and launches; every
// error of the runtime becomes a sentence with the call, CUDA's own text and the problem.
#pragma once
#include <cuda_runtime.h>

#include "core/problem.h"
#include "machine/cuda/runtime.h"

namespace attune::cuda {

// "sm80_forward: cudaMemsetAsync: out of memory (cudaErrorMemoryAllocation), in: forward bf16 ..."
Status failed(std::string_view who, const char* call, cudaError_t, const Problem&);

// The error of the launch before, where there was one.
inline Status last_error(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status::good();
  return Status::no(kernel, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

// On which GPUs the limit of dynamic shared memory of one kernel is already raised: a bit each. Two threads that raise
// it at once do the same thing twice.
struct SharedMemoryOptIn {
  uint64_t devices = 0;  // touched only through std::atomic_ref: g++ 12 puts no std::atomic into a constant table
};

// What a launch says beside its parameters.
struct Launch {
  std::string_view who{};  // the backend
  const void* kernel = nullptr;
  SharedMemoryOptIn* ready = nullptr;
  int64_t blocks = 0;      // along x, at most 2^31 - 1
  int threads = 0;
  int shared_bytes = 0;    // dynamic
  int shared_most = 0;     // that any launch of this kernel asks for, where they differ
  int device = 0;          // the current one
  void* stream = nullptr;
  bool early = false;      // may start while the kernel before it ends, and waits for it by itself; from sm_90 on
};
// `params` is the one parameter of the kernel.
Status launch(const Launch&, const Problem&, const void* params);

// A number for one launch, by which a kernel tells its own marks and counters from what a workspace held before. It
// looks like noise: memory of any content holds counts, indices and floats, and a plain count of launches is one too.
uint64_t launch_tag();

// The dynamic shared memory that a block may have, less what the kernels of this library have as static: from the CUDA
// programming guide's table of compute capabilities.
constexpr int shared_limit(int arch) {
  constexpr int kStatic = 2560;
  const bool large = arch == 90 || arch == 100 || arch == 103, middle = arch == 80 || arch == 87;
  const int kilobytes = arch < 80 ? 64 : large ? 227 : middle ? 163 : 99;
  return kilobytes * 1024 - kStatic;
}

}  // namespace attune::cuda
