// SPDX-License-Identifier: Apache-2.0
// Host view of the compiled kernels of selected attention, which sm80/nsa/selected_instances.cu defines.
#pragma once
#include <span>

#include "attention/sm80/nsa/selected_walk.h"
#include "machine/cuda/launcher.h"

namespace attune::sm80 {

using SelectedFunction = void (*)(SelectedParams);

struct SelectedKernel {
  int dim, dim_v;                      // largest head dims it serves
  int tile_k, rows, threads;           // per CTA
  int fixed_bytes, stage_bytes;        // shared memory: for the rows, and per stage
  SelectedFunction function[2];        // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // per function
};

template <class S>
constexpr SelectedKernel selected_row(SelectedFunction f16, SelectedFunction bf16) {
  return {.dim = S::kDim,
          .dim_v = S::kDimV,
          .tile_k = S::kTileK,
          .rows = S::Walk::kRows,
          .threads = S::Walk::kThreads,
          .fixed_bytes = S::kFixedBytes,
          .stage_bytes = S::kStageBytes,
          .function = {f16, bf16}};
}

// The kernels of one head dim, largest key tile first.
using SelectedKernels = std::span<SelectedKernel>;
SelectedKernels selected_kernels_64();
SelectedKernels selected_kernels_128();
SelectedKernels selected_kernels_192();
SelectedKernels selected_kernels_256();

}  // namespace attune::sm80
