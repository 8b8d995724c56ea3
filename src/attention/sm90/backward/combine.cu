// SPDX-License-Identifier: Apache-2.0
#include "attention/sm90/backward/combine.h"

#include "machine/cuda/launcher.h"

namespace attune::sm90 {

Status combine_dkdv(const cuda::Launcher& launch, const Problem& p, const CombineDkDvParams& x) {
  static constinit cuda::SharedMemoryOptIn ready[2];
  const bool bf16 = p.dtype.q == DType::bf16;
  return launch({.kernel = bf16 ? cuda::address(combine_dkdv_kernel<Bf16>) : cuda::address(combine_dkdv_kernel<F16>),
                 .ready = &ready[bf16],
                 .blocks = combine_blocks(x, p.batch),
                 .threads = kSplitWarps * 32,
                 .dependent = true},
                x);
}

}  // namespace attune::sm90
