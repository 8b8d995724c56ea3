// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_192() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 192, .dim_v = 128}>(),
      instance<ForwardConfig{.dim = 192, .dim_v = 128, .f32_out = true}>(),
      instance<ForwardConfig{.dim = 192, .tile_k = 96}>(),
      instance<ForwardConfig{.dim = 192, .tile_k = 96, .f32_out = true}>(),
  };
  return all;
}

}  // namespace attune::sm90
