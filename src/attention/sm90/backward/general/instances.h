// SPDX-License-Identifier: Apache-2.0
// The compiled general kernels as the host sees them, and their host side. A file of instances/ holds the kernels of
// one head dim. They are slower than specialized kernels and serve what those do not.
#pragma once
#include "attention/sm90/backward/general/kernel_dkdv.h"
#include "attention/sm90/backward/general/kernel_dq.h"
#include "machine/cuda/launcher.h"
#include "plan/backend.h"

namespace attune::sm90 {

struct GeneralKernel {
  int dim;                              // largest head dim, of q and of v
  int threads, rows_bytes, keys_bytes;  // shared memory of the kernel that owns queries; of the one that owns keys
  void (*rows[2])(GeneralParams);       // f16, bf16
  void (*keys[2])(GeneralParams);
  cuda::SharedMemoryOptIn rows_ready[2]{}, keys_ready[2]{};
};

template <int Dim>
constexpr GeneralKernel general_instance() {
  using RowsF = GeneralDqLayout<F16, Dim, Dim>;
  using RowsB = GeneralDqLayout<Bf16, Dim, Dim>;
  using KeysF = GeneralDkDvLayout<F16, Dim, Dim>;
  using KeysB = GeneralDkDvLayout<Bf16, Dim, Dim>;
  static_assert(RowsF::kThreads == KeysF::kThreads);
  return {Dim,
          RowsF::kThreads,
          RowsF::kSharedBytes,
          KeysF::kSharedBytes,
          {general_dq_kernel<RowsF>, general_dq_kernel<RowsB>},
          {general_dkdv_kernel<KeysF>, general_dkdv_kernel<KeysB>}};
}

GeneralKernel& general_kernel_128();
GeneralKernel& general_kernel_256();

// For plans of the paths two_kernel and general. The workspace of a plan suffices for lengths in tensors.
Status general_shape(std::string_view who, Plan&);
Status general_fits(std::string_view who, const Plan&, const Args&);
// Gradients that are not given are not computed.
Status general_run(std::string_view who, const cuda::Launcher&, const Plan&, const Args&, Workspace);

}  // namespace attune::sm90
