#include "attention/sm90/backward/general/instances.h"

namespace attune::sm90 {

AnyKernel& any_kernel_128() {
  static constinit AnyKernel kernel = any_kernel_row<128>();
  return kernel;
}

}  // namespace attune::sm90
