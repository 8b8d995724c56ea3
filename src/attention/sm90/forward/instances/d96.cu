// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_96() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 96}>(),
      instance<ForwardConfig{.dim = 96, .f32_out = true}>(),
  };
  return all;
}

}  // namespace attune::sm90
