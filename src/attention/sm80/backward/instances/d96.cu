// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/backward/instances.h"

namespace attune::sm80 {

BackwardKernels backward_kernels_96() {
  static constinit BackwardKernel keys[] = {
      keys_instance<KeysConfig{.dim = 96, .tile_k = 128, .dq_warps_q = 4, .stages = 3,
                               .shared_memory = SharedMemory::large}>(),
      keys_instance<KeysConfig{.dim = 96, .tile_k = 128, .dq_warps_q = 4, .shared_memory = SharedMemory::middle}>(),
      keys_instance<KeysConfig{.dim = 96, .warps_k = 2, .sum_warps_k = 2, .shared_memory = SharedMemory::small}>(),
      keys_instance<KeysConfig{.dim = 96, .dq_warps_q = 4, .options = true}>(),
  };
  static constinit BackwardKernel rows = rows_instance<RowsConfig{.dim = 96}>();
  return {keys, &rows};
}

}  // namespace attune::sm80
