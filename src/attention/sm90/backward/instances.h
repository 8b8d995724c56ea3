// The compiled Hopper backward kernels as the host sees them. A file backward.sm90.d#.cu holds that of one head dim, so
// that a build compiles them side by side.
#pragma once
#include "attention/sm90/backward/kernel.h"
#include "machine/cuda/launch.h"

namespace attune::sm90 {

struct BackwardKernel {
  int dim, wide;                             // the widest it serves, of q and of v; columns of dQ's sums
  int tile_q, tile_k, threads, shared_bytes;
  const void* (*function[2])();              // f16, bf16; those with a table have other parameters
  cuda::Ready ready[2]{};                    // theirs
};

template <class Shape>
const void* backward_function() { return reinterpret_cast<const void*>(backward_kernel<Shape>); }

template <int Dim, int TileQ, bool Apart, bool Tabled, bool Ordered, bool Options, bool Listed = false,
          bool Stays = false, Share Has = Share::all>
constexpr BackwardKernel backward_kernel_row() {
  using F = BackwardShape<F16, Dim, TileQ, Apart, Tabled, Ordered, Options, Listed, Stays, Has>;
  using B = BackwardShape<Bf16, Dim, TileQ, Apart, Tabled, Ordered, Options, Listed, Stays, Has>;
  return {Dim, F::kWide, TileQ, F::kTileK, F::kThreads, F::kSharedBytes, {backward_function<F>, backward_function<B>}};
}

// Of one head dim. Each in no order, and with dQ added up in a fixed one.
struct BackwardKernels {
  BackwardKernel plain[2], tabled[2], with_options[2];  // those with options have a table too
  BackwardKernel staying[2];                            // plain, by blocks that stay
  BackwardKernel pieced;                                // staying in no order, of query tiles divided among blocks
  BackwardKernel parted[2];                             // plain, of heads divided among blocks
  BackwardKernel listed;                                // has a table, and no order
};
template <int Dim, int TileQ, bool Apart>
constexpr BackwardKernels backward_kernel_rows() {
  return {{backward_kernel_row<Dim, TileQ, Apart, false, false, false>(),
           backward_kernel_row<Dim, TileQ, Apart, false, true, false>()},
          {backward_kernel_row<Dim, TileQ, Apart, true, false, false>(),
           backward_kernel_row<Dim, TileQ, Apart, true, true, false>()},
          {backward_kernel_row<Dim, TileQ, Apart, true, false, true>(),
           backward_kernel_row<Dim, TileQ, Apart, true, true, true>()},
          {backward_kernel_row<Dim, TileQ, Apart, false, false, false, false, true>(),
           backward_kernel_row<Dim, TileQ, Apart, false, true, false, false, true>()},
          backward_kernel_row<Dim, TileQ, Apart, false, false, false, false, true, Share::pieces>(),
          {backward_kernel_row<Dim, TileQ, Apart, false, false, false, false, false, Share::parts>(),
           backward_kernel_row<Dim, TileQ, Apart, false, true, false, false, false, Share::parts>()},
          backward_kernel_row<Dim, TileQ, Apart, true, false, false, true>()};
}

BackwardKernels& backward_kernels_64();
BackwardKernel& backward_kernel_96(bool in_order);  // plain; its tiles and sums are those of 128
BackwardKernels& backward_kernels_128();
BackwardKernel& staying_listed_kernel_128();  // in no order, pieces too
struct TurnedKernels { BackwardKernel plain, staying, pieced, parted; };  // in no order; the last by blocks that stay
TurnedKernels& turned_kernels_128();                                      // their sums are turned

}  // namespace attune::sm90
