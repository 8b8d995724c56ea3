#include "attention/selected_backward.keys.sm80.h"
#include "attention/selected_backward.sm80.h"

namespace attune::sm80 {

SelectedKernels selected_dq_kernels_64() {
  // dim, dim_v, tile_k, warps that compute
  static constinit SelectedKernel all[] = {
      selected_dq_row<64, 64, 64, 8>(),
      selected_dq_row<64, 64, 16, 8>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_64() {
  // dim, dim_v, with dK, with dV
  static constinit SelectedKeysKernel all[] = {
      selected_keys_row<64, 64, true, true>(),
  };
  return all;
}

}  // namespace attune::sm80
