// SPDX-License-Identifier: Apache-2.0
// The compiled Hopper backward kernels as the host sees them. A file of instances/ holds the kernels of one head dim,
// so that a build compiles them in parallel.
#pragma once
#include "attention/sm90/backward/kernel.h"
#include "machine/cuda/launch.h"

namespace attune::sm90 {

struct BackwardKernel {
  int dim, dq_pitch;                   // largest head dim, of q and of v; columns of dQ's sums
  int tile_q, tile_k, threads, shared_bytes;
  const void* (*function[2])();        // f16, bf16; kernels with a table have other parameters
  cuda::SharedMemoryOptIn ready[2]{};  // of these functions
};

template <class Shape>
const void* backward_function() { return reinterpret_cast<const void*>(backward_kernel<Shape>); }

template <BackwardConfig C>
constexpr BackwardKernel instance() {
  using F = BackwardLayout<F16, C>;
  using B = BackwardLayout<Bf16, C>;
  return {.dim = C.dim,
          .dq_pitch = F::kDqPitch,
          .tile_q = C.tile_q,
          .tile_k = F::kTileK,
          .threads = F::kThreads,
          .shared_bytes = F::kSharedBytes,
          .function = {backward_function<F>, backward_function<B>}};
}

// Kernels of one head dim. Pairs: nondeterministic, deterministic.
struct BackwardKernels {
  BackwardKernel plain[2], tabled[2], with_options[2];  // those with options have a table too
  BackwardKernel persistent[2];                         // plain, with persistent CTAs
  BackwardKernel query_splits;                          // persistent, nondeterministic
  BackwardKernel head_splits[2];                        // plain otherwise
  BackwardKernel listed;                                // has a table; nondeterministic
};
template <int dim, int tile_q>
constexpr BackwardKernels backward_instances() {
  using C = BackwardConfig;
  return {.plain = {instance<C{.dim = dim, .tile_q = tile_q}>(),
                    instance<C{.dim = dim, .tile_q = tile_q, .deterministic = true}>()},
          .tabled = {instance<C{.dim = dim, .tile_q = tile_q, .tabled = true}>(),
                     instance<C{.dim = dim, .tile_q = tile_q, .tabled = true, .deterministic = true}>()},
          .with_options = {instance<C{.dim = dim, .tile_q = tile_q, .tabled = true, .options = true}>(),
                           instance<C{.dim = dim, .tile_q = tile_q, .tabled = true, .deterministic = true,
                                      .options = true}>()},
          .persistent = {instance<C{.dim = dim, .tile_q = tile_q, .persistent = true}>(),
                         instance<C{.dim = dim, .tile_q = tile_q, .deterministic = true, .persistent = true}>()},
          .query_splits = instance<C{.dim = dim, .tile_q = tile_q, .persistent = true, .share = Share::queries}>(),
          .head_splits = {instance<C{.dim = dim, .tile_q = tile_q, .share = Share::heads}>(),
                          instance<C{.dim = dim, .tile_q = tile_q, .deterministic = true, .share = Share::heads}>()},
          .listed = instance<C{.dim = dim, .tile_q = tile_q, .tabled = true, .listed = true}>()};
}

BackwardKernels& backward_kernels_64();
BackwardKernel (&backward_kernels_96())[2];  // plain: nondeterministic, deterministic; tiles and sums are those of 128
BackwardKernels& backward_kernels_128();
BackwardKernel& persistent_listed_kernel_128();  // nondeterministic, with query splits
struct TransposedKernels {
  BackwardKernel plain, persistent, query_splits, head_splits;
};
// Nondeterministic; with head splits, persistent too. Their dQ sums are transposed.
TransposedKernels& transposed_kernels_128();

}  // namespace attune::sm90
