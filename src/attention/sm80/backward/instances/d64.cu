// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_64() {
  static constinit BackwardKernel keys[] = {
      keys_instance<KeysConfig{.dim = 64, .tile_k = 128, .warps_q = 1, .stages = 2, .blocks = 2,
                               .shared_memory = SharedMemory::large}>(),
      // For lists of small blocks.
      keys_instance<KeysConfig{.dim = 64, .warps_k = 2, .warps_q = 1, .sum_warps_k = 2, .stages = 2, .blocks = 3,
                               .shared_memory = SharedMemory::large}>(),
      keys_instance<KeysConfig{.dim = 64, .tile_k = 128, .warps_q = 1, .blocks = 2,
                               .shared_memory = SharedMemory::small}>(),
      keys_instance<KeysConfig{.dim = 64, .options = true}>(),
  };
  static constinit BackwardKernel rows = rows_instance<RowsConfig{.dim = 64, .stages = 2}>();
  return {keys, &rows};
}

}  // namespace attune::sm80
