// SPDX-License-Identifier: Apache-2.0
// All kernels of selected attention. One file holds all dims: parsing the headers four times would cost more than
// parallel compilation gains.
#include "attention/sm80/nsa/selected.h"

namespace attune::sm80 {

SelectedKernels selected_kernels_64() {
  static constinit SelectedKernel all[] = {
      instance<SelectedConfig{.dim = 64}>(),
      instance<SelectedConfig{.dim = 64, .tile_k = 16}>(),
  };
  return all;
}

SelectedKernels selected_kernels_128() {
  static constinit SelectedKernel all[] = {
      instance<SelectedConfig{.dim = 128}>(),
      instance<SelectedConfig{.dim = 128, .tile_k = 16}>(),
  };
  return all;
}

SelectedKernels selected_kernels_192() {
  static constinit SelectedKernel all[] = {
      instance<SelectedConfig{.dim = 192, .dim_v = 128}>(),
      instance<SelectedConfig{.dim = 192, .dim_v = 128, .tile_k = 16}>(),
  };
  return all;
}

SelectedKernels selected_kernels_256() {
  static constinit SelectedKernel all[] = {
      instance<SelectedConfig{.dim = 256, .tile_k = 16, .warps = 4}>(),
  };
  return all;
}

}  // namespace attune::sm80
