#include "attention/sm90/backward/two_kernel/instances.h"

namespace attune::sm90 {

WideKernel& wide_kernel_192() {
  static constinit WideKernel kernel = wide_kernel_row<192, 192>();
  return kernel;
}
WideKernel& wide_kernel_192_128() {
  static constinit WideKernel kernel = wide_kernel_row<192, 128, 96, 80>();
  return kernel;
}

}  // namespace attune::sm90
