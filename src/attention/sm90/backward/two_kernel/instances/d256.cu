#include "attention/sm90/backward/two_kernel/instances.h"

namespace attune::sm90 {

WideKernel& wide_kernel_256() {
  static constinit WideKernel kernel = wide_kernel_row<256, 256>();
  return kernel;
}

}  // namespace attune::sm90
