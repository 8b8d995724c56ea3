#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_128() {
  // dims of keys and of values, keys a tile, warpgroups, tiles of q and of k and v in shared memory, weights in place,
  // products in turns, f32, lists, options, key tiles of a warpgroup's own
  static constinit ForwardKernel all[] = {
      forward_kernel_row<128, 128, 128, 2, 2, 2, false, false, false>(),
      forward_kernel_row<128, 128, 64, 3, 2, 4, false, false, false, Lists::none, false, true>(),
      forward_kernel_row<128, 128, 128, 2, 2, 2, false, false, true>(),
      forward_kernel_row<128, 128, 128, 2, 2, 2, false, false, false, Lists::one>(),
  };
  return all;
}

}  // namespace attune::sm90
