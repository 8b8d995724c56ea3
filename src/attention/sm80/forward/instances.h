// The compiled forward kernels as the host sees them: a row of numbers and two functions each. A file
// forward.sm80.d#.cu holds those of one head dim, so that a build compiles them side by side.
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
  cuda::Ready ready[2]{};          // theirs
};

template <int Dim, int DimV, int TileQ, int TileK, int Warps, bool WithOptions, int BlocksPerSm>
constexpr ForwardKernel forward_kernel_row() {
  using F = Forward<F16, Dim, DimV, TileQ, TileK, Warps, WithOptions>;
  constexpr ForwardFunction f16 = forward_kernel<F16, Dim, DimV, TileQ, TileK, Warps, WithOptions, BlocksPerSm>;
  constexpr ForwardFunction bf16 = forward_kernel<Bf16, Dim, DimV, TileQ, TileK, Warps, WithOptions, BlocksPerSm>;
  return {Dim, DimV, TileQ, TileK, F::kThreads, WithOptions, BlocksPerSm, F::kSharedBytes, {f16, bf16}};
}

// Of one head dim, the preferred first.
using ForwardKernels = std::span<ForwardKernel>;
ForwardKernels forward_kernels_64();
ForwardKernels forward_kernels_96();
ForwardKernels forward_kernels_128();
ForwardKernels forward_kernels_192();
ForwardKernels forward_kernels_256();

}  // namespace attune::sm80
