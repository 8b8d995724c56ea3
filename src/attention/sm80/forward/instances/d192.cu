#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_192() {
  // dim, dim_v, tile_q, tile_k, warps, with options, blocks a multiprocessor
  static constinit ForwardKernel all[] = {
      forward_kernel_row<192, 128, 96, 48, 6, false, 1>(),
      forward_kernel_row<192, 192, 96, 64, 6, false, 1>(),
      forward_kernel_row<192, 192, 96, 64, 6, true, 1>(),
  };
  return all;
}

}  // namespace attune::sm80
