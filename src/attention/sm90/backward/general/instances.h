// The compiled general kernels as the host sees them, and their host side. A file of instances/ holds the kernels of
// one head dim. They are slower than specialized kernels and serve what those do not.
#pragma once
#include <algorithm>
#include <iterator>

#include "attention/sm90/backward/general/kernel_dkdv.h"
#include "attention/sm90/backward/general/kernel_dq.h"
#include "machine/cuda/launch.h"
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

inline bool is_large_head(const Problem& p) { return p.dim_qk > 128 || p.dim_v > 128; }
// Lists that the fused kernel walks.
inline bool has_narrow_list(const Problem& p) {
  const Blocks& size = p.mask.blocks;
  return size.k == 128 && (size.q == 128 || (size.q == 64 && std::max(p.dim_qk, p.dim_v) > 64));
}
// True if a kernel for queries and one for keys serve the problem, whatever the arguments.
inline bool is_divided(const Problem& p) {
  const bool ordered = p.reproducible != Reproducible::no;
  return is_large_head(p) || (p.mask.blocks.q && (!has_narrow_list(p) || needs_general(p) || ordered)) ||
         (ordered && p.has(Option::bias));
}
// True if lengths are in tensors, or there are rows outside all sequences.
inline bool has_lengths(const Problem& p, const Args& a) {
  constexpr Role kLengths[] = {Role::cu_q, Role::cu_k, Role::used_q, Role::used_k, Role::left_pad, Role::positions};
  return p.keys == KeySource::ragged || a[Role::q].extent.seq > p.len_q || a[Role::k].extent.seq > p.len_k ||
         std::any_of(std::begin(kLengths), std::end(kLengths), [&](Role r) { return a.given(r); });
}
// True if the problem needs more than kernels without tables serve, whatever the lengths.
inline bool needs_table(const Problem& p) {
  return needs_general(p) || p.mask.blocks.q || p.dtype.grad == DType::f32;
}

// For problems with is_divided(). The workspace of a plan suffices for lengths in tensors.
Status general_shape(std::string_view who, Plan&);
Status general_fits(std::string_view who, const Plan&, const Args&);
// Gradients that are not given are not computed.
Status general_run(std::string_view who, const Plan&, const Args&, Workspace, Stream);

}  // namespace attune::sm90
