// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64_options() {
  // Only two stages of k and v: each stage compiles one more copy of the options.
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 64, .options = true}>(),
  };
  return all;
}

}  // namespace attune::sm90
