#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

BackwardKernel& backward_kernel_96(bool in_order) {
  static constinit BackwardKernel kernels[] = {instance<BackwardConfig{.dim = 96}>(),
                                               instance<BackwardConfig{.dim = 96, .deterministic = true}>()};
  return kernels[in_order];
}

}  // namespace attune::sm90
