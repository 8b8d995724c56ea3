// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_128() {
  static constinit BackwardKernel keys[] = {
      keys_instance<KeysConfig{.dim = 128, .tile_k = 128, .stages = 3, .shared_memory = SharedMemory::large}>(),
      keys_instance<KeysConfig{.dim = 128, .tile_k = 128, .shared_memory = SharedMemory::middle}>(),
      keys_instance<KeysConfig{.dim = 128, .warps_k = 2, .sum_warps_k = 2, .shared_memory = SharedMemory::small}>(),
      keys_instance<KeysConfig{.dim = 128, .options = true}>(),
  };
  static constinit BackwardKernel rows = rows_instance<RowsConfig{.dim = 128}>();
  return {keys, &rows};
}

}  // namespace attune::sm80
