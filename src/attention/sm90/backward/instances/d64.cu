#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernels& backward_kernels_64() {
  // dim, queries of a step, warpgroups apart
  static constinit BackwardKernels kernels = backward_kernel_rows<64, 128, true>();
  return kernels;
}

}  // namespace attune::sm90
