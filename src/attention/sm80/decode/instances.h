// The compiled decode kernels as the host sees them: a row of numbers and two functions each.
#pragma once
#include <span>

#include "attention/sm80/decode/kernel.h"
#include "machine/cuda/launch.h"

namespace attune::sm80 {

using DecodeFunction = void (*)(DecodeParams);

struct DecodeKernel {
  int dim;                       // the widest it serves, of keys and of values
  int rows, keys, threads;       // of a block
  int blocks_per_sm;             // that it is compiled for; shared memory may allow fewer
  int shared_bytes;
  DecodeFunction function[2];    // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};        // theirs
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

// The narrowest first, of one dim the one of fewest rows, of those the one with most shared memory.
std::span<DecodeKernel> decode_kernels();

}  // namespace attune::sm80
