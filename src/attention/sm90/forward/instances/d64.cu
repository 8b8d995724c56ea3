// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/forward/instances.h"

namespace attune::sm90 {

ForwardKernels forward_kernels_64() {
  static constinit ForwardKernel all[] = {
      instance<ForwardConfig{.dim = 64, .ping_pong = true}>(),
      instance<ForwardConfig{.dim = 64, .warpgroups = 3, .in_place = true, .ping_pong = true}>(),
      instance<ForwardConfig{.dim = 64, .ping_pong = true, .f32_out = true}>(),
      instance<ForwardConfig{.dim = 64, .ping_pong = true, .lists = Lists::one}>(),
      // A kernel with stream-K is 2 % slower where stream-K is not used, so it is a separate one.
      instance<ForwardConfig{.dim = 64, .ping_pong = true, .stream_k = true}>(),
  };
  return all;
}

}  // namespace attune::sm90
