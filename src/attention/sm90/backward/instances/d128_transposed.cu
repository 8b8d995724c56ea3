// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/instances.h"

namespace attune::sm90 {

TransposedKernels& transposed_kernels_128() {
  static constinit TransposedKernels kernels = {
      instance<BackwardConfig{.dim = 128, .tile_q = 80}>(),
      instance<BackwardConfig{.dim = 128, .tile_q = 80, .persistent = true}>(),
      instance<BackwardConfig{.dim = 128, .tile_q = 80, .persistent = true, .share = Share::queries}>(),
      instance<BackwardConfig{.dim = 128, .tile_q = 80, .persistent = true, .share = Share::heads}>()};
  return kernels;
}

}  // namespace attune::sm90
