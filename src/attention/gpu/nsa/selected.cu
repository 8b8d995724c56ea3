// SPDX-License-Identifier: Apache-2.0
// cuda_selected: selected attention for inputs that tensor cores cannot take, both passes: f32, head dims that are not
// a multiple of 8, unaligned rows.
#include "attention/gpu/nsa/selected.h"

#include "attention/gpu/clear_rows.h"
#include "attention/gpu/nsa/transpose_lists.h"
#include "attention/gpu/refusal.h"
#include "plan/backend.h"

namespace attune {
namespace {

using cuda::PlainParams;
using sm80::ListBounds;

constexpr std::string_view kWho = "cuda_selected";

int64_t rows_of(const Problem& p) { return int64_t(p.batch) * p.heads_q * p.len_q; }
// One chunk per list: lists are walked whole.
int64_t chunk_of(const Problem& p) { return p.len_q > 0 ? p.len_q : 1; }

struct Scratch { float2* row_stats; sm80::SelectedLists lists; };
Scratch carve(Workspace& ws, const Problem& p, const Nsa& nsa) {
  if (p.pass == Pass::forward) return {};
  Scratch s{};
  s.row_stats = ws.take<float2>(size_t(rows_of(p)));
  s.lists = sm80::carve_lists(ws, ListBounds(p, nsa), chunk_of(p));
  return s;
}

Status supports(const Problem& p, const Device& d) {
  cuda::Refusal r(kWho, p, d);
  r.needs_arch_from(75).variant("selected").kv_like_q();
  for (const DType t : {p.dtype.q, p.dtype.out, p.dtype.grad})
    if (t != DType::none) r.f32_or_half(t);
  for (const int dim : {p.dim_qk, p.dim_v})
    r.require(dim <= cuda::kPlainDim, "dim ", dim, " is over ", cuda::kPlainDim);
  return r.status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const ListBounds lists(p, nsa);
  plan.tile_q = plan.tile_k = plan.splits = 1;
  const int64_t most = std::max({rows_of(p), lists.pairs, lists.lists * nsa.s});
  if (most > INT32_MAX) return Status::unsupported(kWho, ": ", most, " rows or choices are over 2^31 - 1");
  Workspace count;
  carve(count, p, nsa);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status fits(const Plan& plan, const Args& a) {
  if (plan.problem.pass == Pass::backward && a.given(Role::cache_index))
    return Status::unsupported(kWho, ": does not support cache_index: sequences that share keys would write the same "
                               "gradient");
  return Status::good();
}

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, const cuda::Launcher& launcher)
      : p_(plan.problem), a_(a), nsa_(nsa_of(plan.problem)), launcher_(launcher) {
    const Scratch s = carve(ws, p_, nsa_);
    params_.row_stats = s.row_stats, params_.lists = s.lists;
    sm80::SelectedParams& x = params_.x;
    x.blocks = sm80::byte_rows(a[variant_tensor(0)]);
    x.group = Divisor(uint32_t(sm80::heads_per_key(p_))), x.heads_kv = Divisor(uint32_t(p_.heads_kv));
    x.n = nsa_.n, x.size = nsa_.s, x.scale = scale_of(p_, a) * kLog2e;
    x.uniform = !has_sequence_tensors(a);
    if (x.uniform) x.seq = sequence(p_, a, 0);
    x.problem = p_, x.args = dense(a);
  }
  Status run() const {
    const bool f32 = p_.dtype.q == DType::f32;
    if (p_.pass == Pass::forward)
      return launch(f32 ? cuda::plain_forward_kernel<float> : cuda::plain_forward_kernel<void>, rows_of(p_));
    if (Status s = launch(cuda::plain_row_stats_kernel, rows_of(p_)); !s.ok()) return s;
    const auto rows = f32 ? cuda::plain_rows_kernel<float> : cuda::plain_rows_kernel<void>;
    if (a_.given(Role::dq))
      if (Status s = launch(rows, rows_of(p_)); !s.ok()) return s;
    if (!a_.given(Role::dk) && !a_.given(Role::dv)) return Status::good();
    for (const Role r : {Role::dk, Role::dv})
      if (a_.given(r))
        if (Status s = sm80::clear_rows(launcher_, a_[r]); !s.ok()) return s;
    if (Status s = sm80::transpose_lists(launcher_, params_.x, params_.lists); !s.ok()) return s;
    return launch(f32 ? cuda::plain_keys_kernel<float> : cuda::plain_keys_kernel<void>,
                  int64_t(params_.lists.lists) * nsa_.s);
  }

 private:
  // One warp per row. None of these kernels has dynamic shared memory, so they share `ready`.
  Status launch(void (*kernel)(PlainParams), int64_t rows) const {
    static constinit cuda::SharedMemoryOptIn ready;
    return launcher_({.kernel = cuda::address(kernel), .ready = &ready,
                      .blocks = ceil_div(rows, cuda::kPlainWarps), .threads = cuda::kPlainThreads},
                     params_);
  }

  const Problem& p_;
  const Args& a_;
  const Nsa nsa_;
  const cuda::Launcher& launcher_;
  PlainParams params_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  const cuda::Launcher launcher(kWho, plan.problem, a[Role::q].device_index, stream);
  return launcher.status.ok() ? Run(plan, a, ws, launcher).run() : launcher.status;
}

}  // namespace

extern const Backend cuda_selected{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
