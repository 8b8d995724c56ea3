// Host code shared by the forward and backward of selected attention: refusals, the choice of a kernel that walks
// tokens, and its grid.
#pragma once
#include <algorithm>

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
  const int room = cuda::shared_limit(arch) - k.fixed_bytes - list_bytes(p, nsa, k);
  return std::clamp(room / k.stage_bytes, 0, kMostStages);
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
  x.uniform = uniform_lengths(a);
  if (x.uniform) x.seq = sequence(p, a, 0);
  x.problem = p, x.args = dense(a);
  return x;
}

inline Status selected_supports(std::string_view who, Pass pass, const Problem& p, const Device& d) {
  const auto no = [&](const auto&... why) { return Status::no(who, ": ", why...); };
  if (d.kind != DeviceKind::cuda) return no("runs on a GPU, not on ", d.name.empty() ? "a CPU" : d.name);
  if (d.arch < 80) return no("needs a GPU of arch 80 or later, ", d.name, " is ", d.arch);
  if (word(p.variant) != "selected")
    return no("computes selected attention, not ", word(p.variant).empty() ? "dense" : word(p.variant));
  if (p.pass != pass) return no("computes a ", name(pass), ", not a ", name(p.pass));
  if (p.dtype.q != p.dtype.kv)
    return no("q is ", name(p.dtype.q), " and kv is ", name(p.dtype.kv), ", they must be the same");
  if (p.dtype.q != DType::f16 && p.dtype.q != DType::bf16)
    return no("dtype ", name(p.dtype.q), " is not one of f16, bf16");
  for (const int dim : {p.dim_qk, p.dim_v})
    if (dim % 8 || dim > 256) return no("dim ", dim, " is not a multiple of 8 up to 256");
  return Status::good();
}

}  // namespace attune::sm80
