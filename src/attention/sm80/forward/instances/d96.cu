// SPDX-License-Identifier: Apache-2.0
#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_96() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 96}>(),
      instance<ForwardConfig{.dim = 96, .warps = 8, .options = true, .blocks_per_sm = 1}>(),
  };
  return all;
}

}  // namespace attune::sm80
