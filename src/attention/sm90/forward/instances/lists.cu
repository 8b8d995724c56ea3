// Kernels whose warpgroups have a list each, of all dims. One file: three times the headers cost more than compiling
// them side by side gains.
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64_lists() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<64, 64, 64, 2, 2, 8, false, false, false, Lists::each>(),
      forward_kernel_row<64, 64, 64, 2, 2, 8, false, false, false, Lists::each, true>(),
  };
  return all;
}

ForwardKernels forward_kernels_128_lists() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<128, 128, 64, 2, 2, 4, false, false, false, Lists::each>(),
      forward_kernel_row<128, 128, 64, 2, 2, 4, false, false, false, Lists::each, true>(),
  };
  return all;
}

ForwardKernels forward_kernels_256_lists() {
  static constinit ForwardKernel all[] = {
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::each>(),
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::each, true>(),
  };
  return all;
}

}  // namespace attune::sm90
