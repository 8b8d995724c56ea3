#include "attention/selected_backward.keys.sm80.h"
#include "attention/selected_backward.sm80.h"

namespace attune::sm80 {

SelectedKernels selected_dq_kernels_256() {
  // dim, dim_v, tile_k, warps that compute
  static constinit SelectedKernel all[] = {
      selected_dq_row<256, 256, 16, 4>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_256() {
  // dim, dim_v, with dK, with dV
  static constinit SelectedKeysKernel all[] = {
      selected_keys_row<256, 256, true, false>(),
      selected_keys_row<256, 256, false, true>(),
  };
  return all;
}

}  // namespace attune::sm80
