// SPDX-License-Identifier: Apache-2.0
// Host view of the compiled decode kernels: a row of numbers and two functions each.
#pragma once
#include <span>

#include "attention/sm80/decode/kernel.h"
#include "machine/cuda/kernels.h"

namespace attune::sm80 {

using DecodeFunction = void (*)(DecodeParams);

struct DecodeKernel {
  int dim;                             // largest head dim it serves, of keys and values
  int rows, keys, threads;             // per CTA
  int blocks_per_sm;                   // compile-time bound; shared memory may allow fewer
  int shared_bytes;
  DecodeFunction function[2];          // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // per function
};

template <DecodeConfig C>
constexpr DecodeKernel instance() {
  using F = Decode<F16, C>;
  using B = Decode<Bf16, C>;
  return {.dim = C.dim,
          .rows = F::kRows,
          .keys = C.keys,
          .threads = F::kThreads,
          .blocks_per_sm = C.blocks_per_sm,
          .shared_bytes = F::kSharedBytes,
          .function = {decode_kernel<F>, decode_kernel<B>}};
}

// Ordered by head dim, then by rows, then by shared memory, largest first.
std::span<DecodeKernel> decode_kernels();

}  // namespace attune::sm80
