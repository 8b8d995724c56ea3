// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernels& backward_kernels_128() {
  static constinit BackwardKernels kernels = backward_instances<128, 64>();
  return kernels;
}

BackwardKernel& persistent_listed_kernel_128() {
  static constinit BackwardKernel kernel =
      instance<BackwardConfig{.dim = 128, .listed = true, .persistent = true, .share = Share::queries}>();
  return kernel;
}

}  // namespace attune::sm90
