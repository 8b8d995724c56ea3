// The compiled forward kernels as the host sees them: a row of numbers and two functions each. A file
// of instances/ holds those of one head dim, so that a build compiles them side by side.
#pragma once
#include <span>

#include "attention/sm80/forward/kernel.h"
#include "machine/cuda/kernels.h"

namespace attune::sm80 {

using ForwardFunction = void (*)(ForwardParams);

struct ForwardKernel {
  int dim, dim_v;                  // the widest it serves
  int tile_q, tile_k, threads;
  bool with_options;
  int blocks_per_sm;               // that it is compiled for; shared memory may allow fewer
  int shared_bytes;
  ForwardFunction function[2];     // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};          // theirs
};

template <ForwardConfig C>
constexpr ForwardKernel instance() {
  using F = Forward<F16, C>;
  using B = Forward<Bf16, C>;
  return {.dim = C.dim,
          .dim_v = C.dim_v,
          .tile_q = C.tile_q,
          .tile_k = C.tile_k,
          .threads = F::kThreads,
          .with_options = C.options,
          .blocks_per_sm = C.blocks_per_sm,
          .shared_bytes = F::kSharedBytes,
          .function = {forward_kernel<F>, forward_kernel<B>}};
}

// Of one head dim, the preferred first.
using ForwardKernels = std::span<ForwardKernel>;
ForwardKernels forward_kernels_64();
ForwardKernels forward_kernels_96();
ForwardKernels forward_kernels_128();
ForwardKernels forward_kernels_192();
ForwardKernels forward_kernels_256();

}  // namespace attune::sm80
