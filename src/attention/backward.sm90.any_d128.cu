#include "attention/backward.sm90.any.kernels.h"

namespace attune::sm90 {

AnyKernel& any_kernel_128() {
  static constinit AnyKernel kernel = any_kernel_row<128>();
  return kernel;
}

}  // namespace attune::sm90
