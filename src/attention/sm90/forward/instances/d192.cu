#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_192() {
  // dims of keys and of values, keys a tile, warpgroups, tiles of q and of k and v in shared memory, weights in place,
  // products in turns, f32
  static constinit ForwardKernel all[] = {
      forward_kernel_row<192, 128, 128, 2, 1, 2, false, false, false>(),
      forward_kernel_row<192, 128, 128, 2, 1, 2, false, false, true>(),
      forward_kernel_row<192, 192, 96, 2, 1, 2, false, false, false>(),
      forward_kernel_row<192, 192, 96, 2, 1, 2, false, false, true>(),
  };
  return all;
}

}  // namespace attune::sm90
