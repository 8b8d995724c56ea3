#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_256() {
  // dims of keys and of values, keys a tile, warpgroups, tiles of q and of k and v in shared memory, weights in place,
  // products in turns, f32, lists, options, key tiles of a warpgroup's own
  static constinit ForwardKernel all[] = {
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::none, false, true>(),
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, true>(),
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, false, Lists::one>(),
      forward_kernel_row<256, 256, 64, 2, 1, 2, false, false, true, Lists::one>(),
  };
  return all;
}

}  // namespace attune::sm90
