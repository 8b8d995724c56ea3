#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernels& backward_kernels_128() {
  // dim, queries of a step, warpgroups apart
  static constinit BackwardKernels kernels = backward_kernel_rows<128, 64, false>();
  return kernels;
}

BackwardKernel& staying_listed_kernel_128() {
  static constinit BackwardKernel kernel =
      backward_kernel_row<128, 64, false, false, false, false, true, true, Share::pieces>();
  return kernel;
}

}  // namespace attune::sm90
