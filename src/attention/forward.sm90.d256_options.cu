#include "attention/forward.sm90.kernels.h"

namespace attune::sm90 {

// Weights in place: the registers of a second P are the options'.
ForwardKernels forward_kernels_256_options() {
  static constinit ForwardKernel all[] = {forward_kernel_row<256, 256, 64, 2, 1, 2, true, false, false, false, true>()};
  return all;
}

}  // namespace attune::sm90
