#include "attention/backward.sm90.kernels.h"

namespace attune::sm90 {

TurnedKernels& turned_kernels_128() {
  // dim, queries of a step, warpgroups apart, no table, in no order, no options
  static constinit TurnedKernels kernels = {
      backward_kernel_row<128, 80, false, false, false, false>(),
      backward_kernel_row<128, 80, false, false, false, false, false, true>(),
      backward_kernel_row<128, 80, false, false, false, false, false, true, Share::pieces>(),
      backward_kernel_row<128, 80, false, false, false, false, false, true, Share::parts>(),
      backward_kernel_row<128, 80, false, false, false, false, true, true>()};
  return kernels;
}

}  // namespace attune::sm90
