// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_128() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 128}>(),
      instance<ForwardConfig{.dim = 128, .tile_k = 64, .warpgroups = 3, .kv_stages = 4, .own_key_tiles = true}>(),
      instance<ForwardConfig{.dim = 128, .f32_out = true}>(),
      instance<ForwardConfig{.dim = 128, .lists = Lists::one}>(),
  };
  return all;
}

}  // namespace attune::sm90
