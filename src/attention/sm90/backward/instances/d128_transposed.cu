#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

TurnedKernels& turned_kernels_128() {
  // dim, queries of a step, warpgroups apart, no table, in no order, no options
  static constinit TurnedKernels kernels = {
      backward_kernel_row<128, 80, false, false, false, false>(),
      backward_kernel_row<128, 80, false, false, false, false, false, true>(),
      backward_kernel_row<128, 80, false, false, false, false, false, true, Share::pieces>(),
      backward_kernel_row<128, 80, false, false, false, false, false, true, Share::parts>()};
  return kernels;
}

}  // namespace attune::sm90
