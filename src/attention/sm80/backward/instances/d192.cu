// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_192() {
  static constinit BackwardKernel keys[] = {
      keys_instance<KeysConfig{.dim = 192, .warps_k = 2, .warps_q = 4, .step_q = 16, .sum_warps_k = 2, .stages = 2,
                               .shared_memory = SharedMemory::large}>(),
      keys_instance<KeysConfig{.dim = 192, .sum_warps_k = 2, .shared_memory = SharedMemory::middle}>(),
      keys_instance<KeysConfig{.dim = 192, .tile_q = 32, .tile_k = 32, .warps_k = 2, .step_q = 16, .sum_warps_k = 2,
                               .shared_memory = SharedMemory::small}>(),
      keys_instance<KeysConfig{.dim = 192, .tile_q = 32, .tile_k = 32, .warps_k = 2, .step_q = 16, .sum_warps_k = 2,
                               .options = true}>(),
  };
  static constinit BackwardKernel rows = rows_instance<RowsConfig{.dim = 192, .tile_k = 32}>();
  return {keys, &rows};
}

}  // namespace attune::sm80
