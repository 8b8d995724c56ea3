// SPDX-License-Identifier: Apache-2.0
// Launch of clear_kernel (gpu/backward_pre_post.h), for backends with a launcher of their own.
#pragma once
#include "attention/gpu/backward_pre_post.h"
#include "machine/cuda/launcher.h"

namespace attune::sm80 {

// Sets the rows of a tensor to 0; bytes between them are not touched. Static like the kernel: each file has its own.
static inline Status clear_rows(const cuda::Launcher& launcher, const Tensor& t) {
  static constinit cuda::SharedMemoryOptIn ready;
  return launcher({.kernel = cuda::address(clear_kernel), .ready = &ready, .blocks = clear_blocks(t), .threads = 256},
                  t);
}

}  // namespace attune::sm80
