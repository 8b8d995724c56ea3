// SPDX-License-Identifier: Apache-2.0
// Kernel launches and runtime errors, for code that includes CUDA's headers. A backend makes its GPU current, places
// its workspace and launches. Every runtime error becomes a sentence with the call, CUDA's own text and the problem.
#pragma once
#include <cuda_runtime.h>

#include "core/problem.h"
#include "machine/cuda/runtime.h"

namespace attune::cuda {

// "cudaMalloc: out of memory (cudaErrorMemoryAllocation)". Clears the runtime's last error, so that the next call does
// not see it.
Status status_of(std::string_view call, cudaError_t);
// "sm80_forward: cudaMemsetAsync: out of memory (cudaErrorMemoryAllocation), in: forward bf16 ..."
Status failed(std::string_view who, const char* call, cudaError_t, const Problem&);

// The error of the previous launch, if any.
inline Status last_error(const char* kernel) { return status_of(kernel, cudaGetLastError()); }

// The GPUs on which the dynamic shared memory limit of one kernel is already raised, one bit each. Two threads that
// raise it at once do the same work twice.
struct SharedMemoryOptIn {
  uint64_t devices = 0;  // accessed only through std::atomic_ref: g++ 12 puts no std::atomic into a constant table
};

// Launch settings beside the parameters.
struct Launch {
  std::string_view who{};  // the backend
  const void* kernel = nullptr;
  SharedMemoryOptIn* ready = nullptr;
  int64_t blocks = 0;      // along x, at most 2^31 - 1
  int threads = 0;
  int shared_bytes = 0;    // dynamic
  int shared_most = 0;     // largest request of any launch of this kernel, if they differ
  int device = 0;          // the current one
  void* stream = nullptr;
  bool dependent = false;  // may start while the previous kernel ends, and waits for it itself; from sm_90 on
};
// `params` is the single parameter of the kernel.
Status launch(const Launch&, const Problem&, const void* params);

// A number for one launch, by which a kernel distinguishes its own marks and counters from the previous contents of a
// workspace. It is random-looking: uninitialized memory holds counts, indices and floats, and a plain launch count
// could match.
uint64_t launch_tag();

// Dynamic shared memory available to a CTA, minus the static part of this library's kernels. From the table of compute
// capabilities in the CUDA programming guide.
constexpr int shared_limit(int arch) {
  constexpr int kStatic = 2560;
  const bool large = arch == 90 || arch == 100 || arch == 103, middle = arch == 80 || arch == 87;
  const int kilobytes = arch < 80 ? 64 : large ? 227 : middle ? 163 : 99;
  return kilobytes * 1024 - kStatic;
}

}  // namespace attune::cuda
