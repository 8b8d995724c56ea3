#include "attention/forward.sm90.kernels.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64_lists() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<64, 64, 64, 2, 2, 8, false, false, false, Lists::each>(),
      forward_kernel_row<64, 64, 64, 2, 2, 8, false, false, false, Lists::each, true>(),
  };
  return all;
}

}  // namespace attune::sm90
