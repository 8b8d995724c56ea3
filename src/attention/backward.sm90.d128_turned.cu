#include "attention/backward.sm90.kernels.h"

namespace attune::sm90 {

BackwardKernel& backward_kernel_128_turned() {
  // dim, queries of a step, warpgroups apart, no table, in no order, no options
  static constinit BackwardKernel kernel = backward_kernel_row<128, 80, false, false, false, false>();
  return kernel;
}
BackwardKernel& backward_kernel_128_turned_staying() {
  static constinit BackwardKernel kernel = backward_kernel_row<128, 80, false, false, false, false, false, true>();
  return kernel;
}

}  // namespace attune::sm90
