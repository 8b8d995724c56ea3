// SPDX-License-Identifier: Apache-2.0
// The compiled Hopper forward kernels as the host sees them: a row of numbers and two functions each. A file of
// instances/ holds the kernels of one head dim, so that a build compiles them in parallel.
#pragma once
#include <span>

#include "attention/sm90/forward/kernel.h"
#include "machine/cuda/kernels.h"

namespace attune::sm90 {

using ForwardFunction = void (*)(ForwardParams);

struct ForwardKernel {
  int dim, dim_v;                      // the largest head dims it serves
  int tile_q, tile_k, threads;
  bool f32_out;                        // output in f32
  Lists lists;                         // source of the key tiles
  bool options;                        // options that change scores
  bool runtime_out_type;               // output as q or in f32
  bool stream_k;                       // CTAs may share the keys of a query tile
  bool ahead;                          // with lists: CTAs start before the table is ready
  int shared_bytes;
  ForwardFunction function[2];         // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // of these functions
};

template <ForwardConfig C>
constexpr ForwardKernel instance() {
  using F = ForwardLayout<F16, C>;
  using B = ForwardLayout<Bf16, C>;
  return {.dim = C.dim,
          .dim_v = C.dim_v,
          .tile_q = F::kTileQ,
          .tile_k = C.tile_k,
          .threads = F::kThreads,
          .f32_out = C.f32_out,
          .lists = C.lists,
          .options = C.options,
          .runtime_out_type = F::kRuntimeOutType,
          .stream_k = F::kStreamK,
          .ahead = F::kAhead,
          .shared_bytes = F::kSharedBytes,
          .function = {forward_kernel<F>, forward_kernel<B>}};
}

// Kernels of one head dim, the preferred one first.
using ForwardKernels = std::span<ForwardKernel>;
ForwardKernels forward_kernels_64();
ForwardKernels forward_kernels_96();
ForwardKernels forward_kernels_128();
ForwardKernels forward_kernels_192();  // with values of 128 first
ForwardKernels forward_kernels_256();
ForwardKernels forward_kernels_64_options();
ForwardKernels forward_kernels_128_options();
ForwardKernels forward_kernels_256_options();
ForwardKernels forward_kernels_64_lists();
ForwardKernels forward_kernels_128_lists();
ForwardKernels forward_kernels_256_lists();

}  // namespace attune::sm90
