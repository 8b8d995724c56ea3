// The compiled Hopper backward kernels as the host sees them. A file backward.sm90.d#.cu holds that of one head dim, so
// that a build compiles them side by side.
#pragma once
#include "attention/backward.sm90.h"
#include "machine/cuda/launch.h"

namespace attune::sm90 {

struct BackwardKernel {
  int dim;                                   // the widest it serves, of q and of v
  int tile_q, tile_k, threads, shared_bytes;
  void (*function[2])(BackwardParams);       // f16, bf16
  cuda::Ready ready[2]{};                    // theirs
};

template <int Dim, int TileQ, bool Apart>
constexpr BackwardKernel backward_kernel_row() {
  using F = BackwardShape<F16, Dim, TileQ, Apart>;
  using B = BackwardShape<Bf16, Dim, TileQ, Apart>;
  return {Dim, TileQ, F::kTileK, F::kThreads, F::kSharedBytes, {backward_kernel<F>, backward_kernel<B>}};
}

BackwardKernel& backward_kernel_64();
BackwardKernel& backward_kernel_128();

}  // namespace attune::sm90
