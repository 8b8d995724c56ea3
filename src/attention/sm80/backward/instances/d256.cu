// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_256() {
  static constinit BackwardKernel keys[] = {
      keys_instance<KeysConfig{.dim = 256, .warps_k = 2, .warps_q = 4, .step_q = 16, .sum_warps_k = 2, .stages = 2,
                               .shared_memory = SharedMemory::large}>(),
      keys_instance<KeysConfig{.dim = 256, .sum_warps_k = 2, .shared_memory = SharedMemory::middle}>(),
      keys_instance<KeysConfig{.dim = 256, .tile_q = 32, .tile_k = 32, .warps_k = 2, .step_q = 16, .sum_warps_k = 2,
                               .shared_memory = SharedMemory::small}>(),
      keys_instance<KeysConfig{.dim = 256, .tile_q = 32, .tile_k = 32, .warps_k = 2, .step_q = 16, .sum_warps_k = 2,
                               .options = true}>(),
  };
  static constinit BackwardKernel rows =
      rows_instance<RowsConfig{.dim = 256, .tile_q = 48, .tile_k = 32, .blocks_per_sm = 1}>();
  return {keys, &rows};
}

}  // namespace attune::sm80
