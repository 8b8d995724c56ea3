// SPDX-License-Identifier: Apache-2.0
// The compiled kernels of the two-kernel backward as the host sees them, and its host side. A file of instances/ holds
// the kernels of one head dim.
#pragma once
#include "attention/sm90/backward/two_kernel/kernel_dkdv.h"
#include "attention/sm90/backward/two_kernel/kernel_dq.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune::sm90 {

struct TwoKernel {
  int dim_qk, dim_v;                    // the largest head dims it serves
  int queries, keys_of_rows;            // per step of the kernel that owns keys; per step of the one that owns queries
  int threads, rows_bytes, keys_bytes;  // shared memory of the kernel that owns queries; of the one that owns keys
  void (*rows[2])(TwoKernelParams);     // f16, bf16
  void (*keys[2])(TwoKernelParams);
  cuda::SharedMemoryOptIn rows_ready[2]{}, keys_ready[2]{};
};

template <int DimQk, int DimV, int Queries = 64, int Keys = 64>
constexpr TwoKernel two_kernel_instance() {
  using RowsF = DqLayout<F16, DimQk, DimV, Keys>;
  using RowsB = DqLayout<Bf16, DimQk, DimV, Keys>;
  using KeysF = DkDvLayout<F16, DimQk, DimV, Queries>;
  using KeysB = DkDvLayout<Bf16, DimQk, DimV, Queries>;
  static_assert(RowsF::kThreads == KeysF::kThreads);
  return {DimQk, DimV, Queries, Keys, RowsF::kThreads, RowsF::kSharedBytes, KeysF::kSharedBytes,
          {dq_kernel<RowsF>, dq_kernel<RowsB>}, {dkdv_kernel<KeysF>, dkdv_kernel<KeysB>}};
}

TwoKernel& two_kernel_192_128();
TwoKernel& two_kernel_192();
TwoKernel& two_kernel_256();

TwoKernel& two_kernel_of(const Problem&);
// For problems with a head dim over 128 that need no table. Gradients that are not given are not computed.
Status two_kernel_run(std::string_view who, const cuda::Launcher&, const Plan&, const Args&, Workspace);

}  // namespace attune::sm90
