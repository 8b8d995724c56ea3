// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/two_kernel/instances.h"

namespace attune::sm90 {

TwoKernel& two_kernel_256() {
  static constinit TwoKernel kernel = two_kernel_instance<256, 256>();
  return kernel;
}

}  // namespace attune::sm90
