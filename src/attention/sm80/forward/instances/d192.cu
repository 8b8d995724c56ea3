// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_192() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 192, .dim_v = 128, .tile_q = 96, .tile_k = 48, .warps = 6, .blocks_per_sm = 1}>(),
      instance<ForwardConfig{.dim = 192, .tile_q = 96, .warps = 6, .blocks_per_sm = 1}>(),
      instance<ForwardConfig{.dim = 192, .tile_q = 96, .warps = 6, .options = true, .blocks_per_sm = 1}>(),
  };
  return all;
}

}  // namespace attune::sm80
