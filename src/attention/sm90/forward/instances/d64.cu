#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64() {
  // dims of keys and of values, keys a tile, warpgroups, tiles of q and of k and v in shared memory, weights in place,
  // products in turns, f32, lists
  static constinit ForwardKernel all[] = {
      forward_kernel_row<64, 64, 128, 2, 2, 2, false, true, false>(),
      forward_kernel_row<64, 64, 128, 3, 2, 2, true, true, false>(),
      forward_kernel_row<64, 64, 128, 2, 2, 2, false, true, true>(),
      forward_kernel_row<64, 64, 128, 2, 2, 2, false, true, false, Lists::one>(),
      // Blocks share keys: 2 % slower where they do not, so a kernel of its own.
      forward_kernel_row<64, 64, 128, 2, 2, 2, false, true, false, Lists::none, false, false, true>(),
  };
  return all;
}

}  // namespace attune::sm90
