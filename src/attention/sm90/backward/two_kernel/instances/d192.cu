// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/two_kernel/instances.h"

namespace attune::sm90 {

TwoKernel& two_kernel_192() {
  static constinit TwoKernel kernel = two_kernel_instance<192, 192>();
  return kernel;
}
TwoKernel& two_kernel_192_128() {
  static constinit TwoKernel kernel = two_kernel_instance<192, 128, 96, 80>();
  return kernel;
}

}  // namespace attune::sm90
