// The compiled kernels of wide heads as the host sees them, and its side of them. A file backward.sm90.d#.cu holds
// those of one head dim.
#pragma once
#include "attention/sm90/backward/two_kernel/kernel_dkdv.h"
#include "attention/sm90/backward/two_kernel/kernel_dq.h"
#include "machine/cuda/launch.h"
#include "plan/backend.h"

namespace attune::sm90 {

struct WideKernel {
  int dim_qk, dim_v;                     // the widest it serves
  int queries, keys_of_rows;             // of a step of the kernel that owns keys; of that which owns queries
  int threads, rows_bytes, keys_bytes;   // of shared memory
  void (*rows[2])(WideParams);           // f16, bf16
  void (*keys[2])(WideParams);
  cuda::Ready rows_ready[2]{}, keys_ready[2]{};
};

template <int DimQk, int DimV, int Queries = 64, int Keys = 64>
constexpr WideKernel wide_kernel_row() {
  using RowsF = WideRowsShape<F16, DimQk, DimV, Keys>;
  using RowsB = WideRowsShape<Bf16, DimQk, DimV, Keys>;
  using KeysF = WideKeysShape<F16, DimQk, DimV, Queries>;
  using KeysB = WideKeysShape<Bf16, DimQk, DimV, Queries>;
  static_assert(RowsF::kThreads == KeysF::kThreads);
  return {DimQk, DimV, Queries, Keys, RowsF::kThreads, RowsF::kSharedBytes, KeysF::kSharedBytes,
          {wide_rows_kernel<RowsF>, wide_rows_kernel<RowsB>}, {wide_keys_kernel<KeysF>, wide_keys_kernel<KeysB>}};
}

WideKernel& wide_kernel_192_128();
WideKernel& wide_kernel_192();
WideKernel& wide_kernel_256();

WideKernel& wide_kernel_of(const Problem&);
// Of problems with a head dim over 128 that need no table. Gradients that are not given are not computed.
Status wide_run(std::string_view who, const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::sm90
