// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernel (&backward_kernels_96())[2] {
  static constinit BackwardKernel kernels[] = {instance<BackwardConfig{.dim = 96}>(),
                                               instance<BackwardConfig{.dim = 96, .deterministic = true}>()};
  return kernels;
}

}  // namespace attune::sm90
