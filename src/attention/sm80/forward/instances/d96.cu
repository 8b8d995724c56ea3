#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_96() {
  // dim, dim_v, tile_q, tile_k, warps, with options, blocks a multiprocessor
  static constinit ForwardKernel all[] = {
      forward_kernel_row<96, 96, 128, 64, 4, false, 2>(),
      forward_kernel_row<96, 96, 128, 64, 8, true, 1>(),
  };
  return all;
}

}  // namespace attune::sm80
