#include "attention/forward.sm90.kernels.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_128_lists() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<128, 128, 64, 2, 2, 4, false, false, false, Lists::each>(),
      forward_kernel_row<128, 128, 64, 2, 2, 4, false, false, false, Lists::each, true>(),
  };
  return all;
}

}  // namespace attune::sm90
