// SPDX-License-Identifier: Apache-2.0
// Host view of the compiled kernels of the selected-attention backward, which sm80/nsa/selected_backward_instances.cu
// defines.
#pragma once
#include "attention/sm80/nsa/selected_instances.h"
#include "attention/gpu/nsa/selected_lists.h"

namespace attune::sm80 {

constexpr int kKeysOfTile = 64, kKeyWarps = 4, kKeyRows = 32, kMostKeyStages = 3;

struct SelectedKeysParams {
  SelectedParams x;
  SelectedLists lists;
  int tiles_per_block;  // key tiles of kKeysOfTile keys per key block
  int stages;
  float* partial;       // [slot][tile][kKeysOfTile][dim_qk + dim_v]: sums of lists with several chunks
};

using SelectedKeysFunction = void (*)(SelectedKeysParams);

struct SelectedKeysKernel {
  int dim, dim_v;                      // largest head dims it serves
  bool with_k, with_v;                 // gradients it computes
  int fixed_bytes, stage_bytes;        // shared memory: for the keys, and per stage
  SelectedKeysFunction function[2];    // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // per function
};

// The kernels of one head dim: one, or one per gradient.
using SelectedKeysKernels = std::span<SelectedKeysKernel>;
SelectedKeysKernels selected_keys_kernels_64();
SelectedKeysKernels selected_keys_kernels_128();
SelectedKeysKernels selected_keys_kernels_192();
SelectedKeysKernels selected_keys_kernels_256();

SelectedKernels selected_dq_kernels_64();
SelectedKernels selected_dq_kernels_128();
SelectedKernels selected_dq_kernels_192();
SelectedKernels selected_dq_kernels_256();

}  // namespace attune::sm80
