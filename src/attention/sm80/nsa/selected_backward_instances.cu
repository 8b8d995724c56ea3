// Every kernel of the backward of selected attention, in one file as those of the forward.
#include "attention/sm80/nsa/selected_backward_dkdv.h"
#include "attention/sm80/nsa/selected_backward.h"

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

SelectedKernels selected_dq_kernels_128() {
  static constinit SelectedKernel all[] = {
      selected_dq_row<128, 128, 64, 8>(),
      selected_dq_row<128, 128, 16, 8>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_128() {
  static constinit SelectedKeysKernel all[] = {
      selected_keys_row<128, 128, true, true>(),
  };
  return all;
}

SelectedKernels selected_dq_kernels_192() {
  static constinit SelectedKernel all[] = {
      selected_dq_row<192, 128, 64, 8>(),
      selected_dq_row<192, 128, 16, 8>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_192() {
  static constinit SelectedKeysKernel all[] = {
      selected_keys_row<192, 128, true, true>(),
  };
  return all;
}

SelectedKernels selected_dq_kernels_256() {
  static constinit SelectedKernel all[] = {
      selected_dq_row<256, 256, 16, 4>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_256() {
  static constinit SelectedKeysKernel all[] = {
      selected_keys_row<256, 256, true, false>(),
      selected_keys_row<256, 256, false, true>(),
  };
  return all;
}

}  // namespace attune::sm80
