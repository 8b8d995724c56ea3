#include "attention/selected.sm80.h"

namespace attune::sm80 {

SelectedKernels selected_kernels_256() {
  // dim, dim_v, tile_k, warps that compute
  static constinit SelectedKernel all[] = {
      selected_kernel_row<256, 256, 16, 4>(),
  };
  return all;
}

}  // namespace attune::sm80
