// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_64() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 64, .tile_k = 128}>(),
      instance<ForwardConfig{.dim = 64, .tile_q = 64, .blocks_per_sm = 4}>(),
      // For short sequences.
      instance<ForwardConfig{.dim = 64, .tile_q = 64, .tile_k = 128, .warps = 2, .blocks_per_sm = 4}>(),
      instance<ForwardConfig{.dim = 64, .options = true}>(),
  };
  return all;
}

}  // namespace attune::sm80
