// SPDX-License-Identifier: Apache-2.0
// Host code shared by the forward and backward of selected attention: refusals, the choice of a kernel that walks
// tokens, and its grid.
#pragma once
#include <algorithm>

#include "attention/gpu/refusal.h"
#include "attention/sm80/nsa/selected_instances.h"
#include "core/check.h"
#include "core/variant/nsa.h"
#include "plan/backend.h"

namespace attune::sm80 {

constexpr int kLeastStages = 2;
constexpr int kMostEntries = 8192;  // of the lists of a CTA's tokens, in shared memory

// Rows per CTA: whole tokens, unless a token has more rows than a CTA.
inline int selected_rows(const Problem& p, const Nsa& nsa, const SelectedKernel& k) {
  const int group = heads_per_key(p);
  if (group > k.rows) return k.rows;
  return group * std::max(1, std::min({k.rows / group, kMostTokens, kMostEntries / nsa.n}));
}
inline int64_t selected_row_blocks(const Problem& p, const Nsa& nsa, const SelectedKernel& k) {
  return ceil_div(int64_t(p.len_q) * heads_per_key(p), selected_rows(p, nsa, k));
}
// CTAs for all sequences and KV heads.
inline int64_t selected_blocks(const Problem& p, const Nsa& nsa, const SelectedKernel& k) {
  return int64_t(p.batch) * p.heads_kv * selected_row_blocks(p, nsa, k);
}

inline int list_bytes(const Problem& p, const Nsa& nsa, const SelectedKernel& k) {
  const int group = heads_per_key(p), rows = selected_rows(p, nsa, k);
  return (rows % group ? 2 : rows / group) * nsa.n * int(sizeof(int32_t));
}
// A launch takes all available shared memory, so the kernel opts in once, whatever the lists take of it.
inline int stages_of(const SelectedKernel& k, const Problem& p, const Nsa& nsa, int arch) {
  const int available = cuda::shared_limit(arch) - k.fixed_bytes - list_bytes(p, nsa, k);
  return std::clamp(available / k.stage_bytes, 0, kMostStages);
}
// Selects the smallest head dims that fit; among those, a tile that wastes no keys of a block, within shared memory.
template <size_t N>
SelectedKernel* selected_kernel_for(SelectedKernels (*const (&all)[N])(), const Problem& p, const Nsa& nsa, int arch) {
  for (const auto kernels : all) {
    SelectedKernel* best = nullptr;
    for (SelectedKernel& k : kernels()) {
      if (k.dim < p.dim_qk || k.dim_v < p.dim_v || stages_of(k, p, nsa, arch) < kLeastStages) continue;
      if (!best || nsa.s % best->tile_k) best = &k;
    }
    if (best) return best;
  }
  return nullptr;
}

inline SelectedParams selected_params(const Problem& p, const Args& a, const Nsa& nsa, const SelectedKernel& k,
                                      int arch) {
  SelectedParams x{};
  x.q = byte_rows(a[Role::q]), x.k = byte_rows(a[Role::k]), x.v = byte_rows(a[Role::v]);
  x.blocks = byte_rows(a[variant_tensor(0)]);
  x.group = Divisor(uint32_t(heads_per_key(p)));
  x.row_blocks = Divisor(uint32_t(selected_row_blocks(p, nsa, k)));
  x.heads_kv = Divisor(uint32_t(p.heads_kv));
  x.rows = selected_rows(p, nsa, k), x.n = nsa.n, x.size = nsa.s, x.stages = stages_of(k, p, nsa, arch);
  x.scale = scale_of(p, a) * kLog2e;
  x.uniform = !has_sequence_tensors(a);
  if (x.uniform) x.seq = sequence(p, a, 0);
  x.problem = p, x.args = dense(a);
  return x;
}

inline cuda::Refusal selected_refusal(std::string_view who, Pass pass, const Problem& p, const Device& d) {
  return cuda::Refusal(who, p, d).needs_arch_from(80).variant("selected").pass(pass).half_inputs().dims(8, 256);
}

}  // namespace attune::sm80
