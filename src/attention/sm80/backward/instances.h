// The compiled backward kernels as the host sees them. A file of instances/ holds those of one head dim,
// so that a build compiles them side by side.
#pragma once
#include <span>

#include "attention/sm80/backward/kernel_dq.h"
#include "machine/cuda/launch.h"

namespace attune::sm80 {

using BackwardFunction = void (*)(BackwardParams);

struct BackwardKernel {
  int dim;                          // the widest it serves, of q and of v
  int tile;                         // keys of a block; of a kernel for dQ, rows
  int threads;
  bool with_options;
  Room room;
  int shared_bytes;
  BackwardFunction function[2];     // f16, bf16
  cuda::SharedMemoryOptIn ready[2]{};           // theirs
};

template <KeysConfig C>
constexpr BackwardKernel keys_instance() {
  using F = BackwardKeys<F16, C>;
  using B = BackwardKeys<Bf16, C>;
  return {.dim = C.dim,
          .tile = C.tile_k,
          .threads = F::kThreads,
          .with_options = C.options,
          .room = C.room,
          .shared_bytes = F::kSharedBytes,
          .function = {backward_keys_kernel<F>, backward_keys_kernel<B>}};
}
template <int Dim, class Shape>
constexpr BackwardKernel rows_instance() {
  using R = BackwardRows<F16, Dim, Dim, Shape>;
  constexpr BackwardFunction f16 = backward_rows_kernel<F16, Dim, Dim, Shape>;
  constexpr BackwardFunction bf16 = backward_rows_kernel<Bf16, Dim, Dim, Shape>;
  return {Dim, Shape::kTileQ, Shape::kThreads, true, Room::any, R::kSharedBytes, {f16, bf16}};
}

// Of one head dim. That of dQ is for reproducible runs with a block list.
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
