// SPDX-License-Identifier: Apache-2.0
// All kernels of the selected-attention backward, in one file like those of the forward.
#include "attention/sm80/nsa/selected_backward_dkdv.h"
#include "attention/sm80/nsa/selected_backward.h"

namespace attune::sm80 {

SelectedKernels selected_dq_kernels_64() {
  static constinit SelectedKernel all[] = {
      dq_instance<SelectedConfig{.dim = 64}>(),
      dq_instance<SelectedConfig{.dim = 64, .tile_k = 16}>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_64() {
  static constinit SelectedKeysKernel all[] = {
      dkdv_instance<SelectedKeysConfig{.dim = 64}>(),
  };
  return all;
}

SelectedKernels selected_dq_kernels_128() {
  static constinit SelectedKernel all[] = {
      dq_instance<SelectedConfig{.dim = 128}>(),
      dq_instance<SelectedConfig{.dim = 128, .tile_k = 16}>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_128() {
  static constinit SelectedKeysKernel all[] = {
      dkdv_instance<SelectedKeysConfig{.dim = 128}>(),
  };
  return all;
}

SelectedKernels selected_dq_kernels_192() {
  static constinit SelectedKernel all[] = {
      dq_instance<SelectedConfig{.dim = 192, .dim_v = 128}>(),
      dq_instance<SelectedConfig{.dim = 192, .dim_v = 128, .tile_k = 16}>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_192() {
  static constinit SelectedKeysKernel all[] = {
      dkdv_instance<SelectedKeysConfig{.dim = 192, .dim_v = 128}>(),
  };
  return all;
}

SelectedKernels selected_dq_kernels_256() {
  static constinit SelectedKernel all[] = {
      dq_instance<SelectedConfig{.dim = 256, .tile_k = 16, .warps = 4}>(),
  };
  return all;
}

SelectedKeysKernels selected_keys_kernels_256() {
  static constinit SelectedKeysKernel all[] = {
      dkdv_instance<SelectedKeysConfig{.dim = 256, .dv = false}>(),
      dkdv_instance<SelectedKeysConfig{.dim = 256, .dk = false}>(),
  };
  return all;
}

}  // namespace attune::sm80
