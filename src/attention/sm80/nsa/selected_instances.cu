// Every kernel of selected attention. All dims are in one file: four times the headers cost more than compiling them
// side by side gains.
#include "attention/sm80/nsa/selected.h"

namespace attune::sm80 {

SelectedKernels selected_kernels_64() {
  // dim, dim_v, tile_k, warps that compute
  static constinit SelectedKernel all[] = {
      selected_kernel_row<64, 64, 64, 8>(),
      selected_kernel_row<64, 64, 16, 8>(),
  };
  return all;
}

SelectedKernels selected_kernels_128() {
  static constinit SelectedKernel all[] = {
      selected_kernel_row<128, 128, 64, 8>(),
      selected_kernel_row<128, 128, 16, 8>(),
  };
  return all;
}

SelectedKernels selected_kernels_192() {
  static constinit SelectedKernel all[] = {
      selected_kernel_row<192, 128, 64, 8>(),
      selected_kernel_row<192, 128, 16, 8>(),
  };
  return all;
}

SelectedKernels selected_kernels_256() {
  static constinit SelectedKernel all[] = {
      selected_kernel_row<256, 256, 16, 4>(),
  };
  return all;
}

}  // namespace attune::sm80
