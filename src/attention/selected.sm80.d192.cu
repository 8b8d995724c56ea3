#include "attention/selected.sm80.h"

namespace attune::sm80 {

SelectedKernels selected_kernels_192() {
  // dim, dim_v, tile_k, warps that compute
  static constinit SelectedKernel all[] = {
      selected_kernel_row<192, 128, 64, 8>(),
      selected_kernel_row<192, 128, 16, 8>(),
  };
  return all;
}

}  // namespace attune::sm80
