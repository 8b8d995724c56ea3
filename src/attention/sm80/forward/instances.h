// SPDX-License-Identifier: Apache-2.0
// Host view of the compiled forward kernels: a row of numbers and two functions each. Each file in instances/ holds one
// head dim, so that a build compiles them in parallel.
#pragma once
#include <span>

#include "attention/sm80/forward/kernel.h"
#include "machine/cuda/kernels.h"

namespace attune::sm80 {

using ForwardFunction = void (*)(ForwardParams);

struct ForwardKernel {
  int dim, dim_v;                      // largest head dims it serves
  int tile_q, tile_k, threads;
  bool with_options;
  int blocks_per_sm;                   // compile-time bound; shared memory may allow fewer
  int shared_bytes;
  ForwardFunction function[2];         // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // per function
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

// The kernels of one head dim, preferred first.
using ForwardKernels = std::span<ForwardKernel>;
ForwardKernels forward_kernels_64();
ForwardKernels forward_kernels_96();
ForwardKernels forward_kernels_128();
ForwardKernels forward_kernels_192();
ForwardKernels forward_kernels_256();

}  // namespace attune::sm80
