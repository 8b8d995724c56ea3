#include "attention/sm80/forward/instances.h"

namespace attune::sm80 {

ForwardKernels forward_kernels_64() {
  // dim, dim_v, tile_q, tile_k, warps, with options, blocks a multiprocessor
  static constinit ForwardKernel all[] = {
      forward_kernel_row<64, 64, 128, 128, 4, false, 2>(),
      forward_kernel_row<64, 64, 64, 64, 4, false, 4>(),
      forward_kernel_row<64, 64, 64, 128, 2, false, 4>(),  // for short sequences
      forward_kernel_row<64, 64, 128, 64, 4, true, 2>(),
  };
  return all;
}

}  // namespace attune::sm80
