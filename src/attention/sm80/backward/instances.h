// SPDX-License-Identifier: Apache-2.0
// Host view of the compiled backward kernels. Each file in instances/ holds one head dim, so that a build compiles them
// in parallel.
#pragma once
#include <span>

#include "attention/sm80/backward/kernel_dq.h"
#include "machine/cuda/launch.h"

namespace attune::sm80 {

using BackwardFunction = void (*)(BackwardParams);

struct BackwardKernel {
  int dim;                             // largest head dim it serves, of q and v
  int tile;                            // keys per CTA; query rows per CTA in a dQ kernel
  int threads;
  bool with_options;
  SharedMemory shared_memory;
  int shared_bytes;
  BackwardFunction function[2];        // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};  // per function
};

template <KeysConfig C>
constexpr BackwardKernel keys_instance() {
  using F = BackwardKeys<F16, C>;
  using B = BackwardKeys<Bf16, C>;
  return {.dim = C.dim,
          .tile = C.tile_k,
          .threads = F::kThreads,
          .with_options = C.options,
          .shared_memory = C.shared_memory,
          .shared_bytes = F::kSharedBytes,
          .function = {backward_keys_kernel<F>, backward_keys_kernel<B>}};
}
template <RowsConfig C>
constexpr BackwardKernel rows_instance() {
  using F = BackwardRows<F16, C>;
  using B = BackwardRows<Bf16, C>;
  return {.dim = C.dim,
          .tile = C.tile_q,
          .threads = F::kThreads,
          .with_options = true,
          .shared_memory = SharedMemory::any,
          .shared_bytes = F::kSharedBytes,
          .function = {backward_rows_kernel<F>, backward_rows_kernel<B>}};
}

// The kernels of one head dim. The dQ kernel serves deterministic runs with a block list.
struct BackwardKernels {
  std::span<BackwardKernel> keys;
  BackwardKernel* rows;
};
BackwardKernels backward_kernels_64();
BackwardKernels backward_kernels_96();
BackwardKernels backward_kernels_128();
BackwardKernels backward_kernels_192();
BackwardKernels backward_kernels_256();

}  // namespace attune::sm80
