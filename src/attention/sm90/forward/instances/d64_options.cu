#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64_options() {
  // As without options, but for fewer tiles of k and v at d64: each is one more copy of the options.
  static constinit ForwardKernel all[] = {
      forward_kernel_row<64, 64, 128, 2, 2, 2, false, false, false, Lists::none, true>(),
  };
  return all;
}

}  // namespace attune::sm90
