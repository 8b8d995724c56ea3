#include "attention/backward.sm90.kernels.h"

namespace attune::sm90 {

BackwardKernel& backward_kernel_64() {
  // dim, queries of a step, warpgroups apart
  static constinit BackwardKernel kernel = backward_kernel_row<64, 128, true>();
  return kernel;
}

}  // namespace attune::sm90
