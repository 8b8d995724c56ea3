#include "attention/backward.sm90.kernels.h"

namespace attune::sm90 {

BackwardKernel& backward_kernel_128() {
  // dim, queries of a step, warpgroups apart
  static constinit BackwardKernel kernel = backward_kernel_row<128, 64, false>();
  return kernel;
}

}  // namespace attune::sm90
