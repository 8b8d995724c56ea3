// SPDX-License-Identifier: Apache-2.0
// Launches the kernels of one run, for .cu files: what they share is given once.
#pragma once
#include "machine/cuda/launch.h"

namespace attune::cuda {

inline const void* address(auto* kernel) { return reinterpret_cast<const void*>(kernel); }

// Makes the GPU current during its lifetime. A run asks `status` before its first launch.
class Launcher {
 public:
  Launcher(std::string_view who, const Problem& p, int device, void* stream)
      : who_(who), problem_(p), device_(device), stream_(stream), guard_(device),
        status(guard_.status.ok() ? Status::good() : failed(guard_.status)) {}

  // `launch` names the kernel, its CTAs and its memory; who, device and stream are filled in. Does nothing if there are
  // no CTAs. `params` is the single parameter of the kernel.
  template <class Params>
  Status operator()(Launch launch, const Params& params) const {
    if (!launch.blocks) return Status::good();
    launch.who = who_, launch.device = device_, launch.stream = stream_;
    return cuda::launch(launch, problem_, &params);
  }
  // Clears `bytes` bytes, in stream order.
  Status zero(void* to, size_t bytes) const {
    const cudaError_t error = cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(stream_));
    return error == cudaSuccess ? Status::good() : cuda::failed(who_, "cudaMemsetAsync", error, problem_);
  }
  // The sentence of a failure of this run: who, what, and the problem.
  Status failed(const Status& s) const {
    return Status::failure(s.code, who_, ": ", s.message, ", in: ", name(problem_));
  }
  int device() const { return device_; }
  void* stream() const { return stream_; }

 private:
  std::string_view who_;
  const Problem& problem_;
  int device_;
  void* stream_;
  DeviceGuard guard_;

 public:
  const Status status;
};

}  // namespace attune::cuda
