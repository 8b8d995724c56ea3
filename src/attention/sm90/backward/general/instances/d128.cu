// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/general/instances.h"

namespace attune::sm90 {

GeneralKernel& general_kernel_128() {
  static constinit GeneralKernel kernel = general_instance<128>();
  return kernel;
}

}  // namespace attune::sm90
