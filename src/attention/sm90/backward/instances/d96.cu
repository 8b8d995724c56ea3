#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernel& backward_kernel_96(bool in_order) {
  // dim, queries of a step, warpgroups apart, no table, in a fixed order, no options
  static constinit BackwardKernel kernels[] = {backward_kernel_row<96, 64, false, false, false, false>(),
                                               backward_kernel_row<96, 64, false, false, true, false>()};
  return kernels[in_order];
}

}  // namespace attune::sm90
