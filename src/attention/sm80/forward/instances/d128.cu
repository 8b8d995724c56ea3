// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_128() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 128}>(),
      instance<ForwardConfig{.dim = 128, .tile_q = 64, .blocks_per_sm = 3}>(),
      // For lists of small blocks and narrow windows.
      instance<ForwardConfig{.dim = 128, .tile_q = 64, .warps = 2, .blocks_per_sm = 4}>(),
      instance<ForwardConfig{.dim = 128, .warps = 8, .options = true, .blocks_per_sm = 1}>(),
  };
  return all;
}

}  // namespace attune::sm80
