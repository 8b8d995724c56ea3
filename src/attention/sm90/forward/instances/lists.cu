// SPDX-License-Identifier: Apache-2.0
// Kernels with a list per warpgroup, for all head dims. They share one file: parsing the headers three times costs more
// than compiling in parallel gains.
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64_lists() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 64, .tile_k = 64, .kv_stages = 8, .lists = Lists::each}>(),
      instance<ForwardConfig{.dim = 64, .tile_k = 64, .kv_stages = 8, .lists = Lists::each, .options = true}>(),
  };
  return all;
}

ForwardKernels forward_kernels_128_lists() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 128, .tile_k = 64, .kv_stages = 4, .lists = Lists::each}>(),
      instance<ForwardConfig{.dim = 128, .tile_k = 64, .kv_stages = 4, .lists = Lists::each, .options = true}>(),
  };
  return all;
}

ForwardKernels forward_kernels_256_lists() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::each}>(),
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::each, .options = true}>(),
  };
  return all;
}

}  // namespace attune::sm90
