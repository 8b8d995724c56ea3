// The compiled Hopper forward kernels as the host sees them: a row of numbers and two functions each. A file
// forward.sm90.d#.cu holds those of one head dim, so that a build compiles them side by side.
#pragma once
#include <span>

#include "attention/sm90/forward/kernel.h"
#include "machine/cuda/kernels.h"

namespace attune::sm90 {

using ForwardFunction = void (*)(ForwardParams);

struct ForwardKernel {
  int dim, dim_v;               // the widest it serves
  int tile_q, tile_k, threads;
  bool wide;                    // out in f32
  Lists lists;                  // where key tiles come from
  bool options;                 // those that change scores
  bool either;                  // out as q or in f32
  bool shares;                  // blocks may share the keys of a query tile
  bool ahead;                   // with lists: blocks begin before the table is there
  int shared_bytes;
  ForwardFunction function[2];  // f16, bf16
  cuda::Ready ready[2]{};       // theirs
};

template <int Dim, int DimV, int TileK, int Groups, int QStages, int Stages, bool InPlace, bool Turns, bool Wide,
          Lists From = Lists::none, bool Options = false, bool Own = false, bool Parts = Dim == 128 || Dim == 256>
constexpr ForwardKernel forward_kernel_row() {
  using F =
      ForwardShape<F16, Dim, DimV, TileK, Groups, QStages, Stages, InPlace, Turns, Wide, From, Options, Own, Parts>;
  using B =
      ForwardShape<Bf16, Dim, DimV, TileK, Groups, QStages, Stages, InPlace, Turns, Wide, From, Options, Own, Parts>;
  return {Dim,     DimV,       F::kTileQ,  TileK,     F::kThreads,     Wide, From,
          Options, F::kEither, F::kShares, F::kAhead, F::kSharedBytes, {forward_kernel<F>, forward_kernel<B>}};
}

// Of one head dim, the preferred first.
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
