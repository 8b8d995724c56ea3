#include "attention/backward.sm90.kernels.h"

namespace attune::sm90 {

BackwardKernel& backward_kernel_96() {
  // dim, queries of a step, warpgroups apart, no table, in no order, no options
  static constinit BackwardKernel kernel = backward_kernel_row<96, 64, false, false, false, false>();
  return kernel;
}

}  // namespace attune::sm90
