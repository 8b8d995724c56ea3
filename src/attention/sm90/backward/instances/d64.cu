// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernels& backward_kernels_64() {
  static constinit BackwardKernels kernels = backward_instances<64, 128>();
  return kernels;
}

}  // namespace attune::sm90
