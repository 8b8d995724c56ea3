// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_256_options() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 256, .tile_k = 64, .options = true}>(),
  };
  return all;
}

}  // namespace attune::sm90
