#include "attention/forward.sm90.kernels.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_256_lists() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::each>(),
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::each, true>(),
  };
  return all;
}

}  // namespace attune::sm90
