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
  cuda::Ready ready[2]{};        // theirs
};

template <int Dim, int Keys, int Stages, int Warps, int Team, int BlocksPerSm>
constexpr DecodeKernel decode_kernel_row() {
  using D = Decode<F16, Dim, Keys, Stages, Warps, Team>;
  constexpr DecodeFunction f16 = decode_kernel<F16, Dim, Keys, Stages, Warps, Team, BlocksPerSm>;
  constexpr DecodeFunction bf16 = decode_kernel<Bf16, Dim, Keys, Stages, Warps, Team, BlocksPerSm>;
  return {Dim, D::kRows, Keys, D::kThreads, BlocksPerSm, D::kSharedBytes, {f16, bf16}};
}

// The narrowest first, of one dim the one of fewest rows, of those the one with most shared memory.
std::span<DecodeKernel> decode_kernels();

}  // namespace attune::sm80
