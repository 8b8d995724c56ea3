// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_256() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .own_key_tiles = true}>(),
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .f32_out = true}>(),
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::one}>(),
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .f32_out = true, .lists = Lists::one}>(),
  };
  return all;
}

}  // namespace attune::sm90
