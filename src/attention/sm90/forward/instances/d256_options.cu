#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_256_options() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::none, true>(),
  };
  return all;
}

}  // namespace attune::sm90
