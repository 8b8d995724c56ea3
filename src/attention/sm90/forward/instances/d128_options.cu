#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_128_options() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<128, 128, 128, 2, 2, 2, false, false, false, Lists::none, true>(),
  };
  return all;
}

}  // namespace attune::sm90
