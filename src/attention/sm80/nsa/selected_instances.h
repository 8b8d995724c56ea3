// The compiled kernels of selected attention as the host sees them; sm80/nsa/selected_instances.cu holds them.
#pragma once
#include <span>

#include "attention/sm80/nsa/selected_walk.h"
#include "machine/cuda/launch.h"

namespace attune::sm80 {

using SelectedFunction = void (*)(SelectedParams);

struct SelectedKernel {
  int dim, dim_v;                 // the widest it serves
  int tile_k, rows, threads;      // of a block
  int fixed_bytes, stage_bytes;   // of shared memory: for the rows, and for every stage
  SelectedFunction function[2];   // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};         // theirs
};

// Of one head dim, the largest tile of keys first.
using SelectedKernels = std::span<SelectedKernel>;
SelectedKernels selected_kernels_64();
SelectedKernels selected_kernels_128();
SelectedKernels selected_kernels_192();
SelectedKernels selected_kernels_256();

}  // namespace attune::sm80
