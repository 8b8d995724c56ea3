#include "attention/backward.sm90.kernels.h"

namespace attune::sm90 {

BackwardKernels& backward_kernels_64() {
  // dim, queries of a step, warpgroups apart
  static constinit BackwardKernels kernels = backward_kernel_rows<64, 128, true>();
  return kernels;
}
BackwardKernel& staying_with_parts_64() {
  static constinit BackwardKernel kernel =
      backward_kernel_row<64, 128, true, false, false, false, false, true, Share::parts>();
  return kernel;
}

}  // namespace attune::sm90
