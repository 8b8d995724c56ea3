// SPDX-License-Identifier: Apache-2.0
// sm80_selected_backward: host side. A run launches prepare (log-sum-exp and delta of every row), dQ by the walk of the
// forward, the transposition of the lists, dK and dV by key block, and the sum of partial results. Every order is
// fixed, so every run is deterministic; with repro=batch, chunks have a fixed size.
#include "attention/gpu/clear_rows.h"
#include "attention/sm80/nsa/selected_host.h"
#include "attention/sm80/nsa/selected_backward_combine.h"
#include "attention/gpu/nsa/transpose_lists.h"

namespace attune {
namespace {

using sm80::ListBounds;
using sm80::SelectedKernel;
using sm80::SelectedKeysKernel;
using sm80::SelectedLists;

constexpr std::string_view kWho = "sm80_selected_backward";
constexpr int64_t kMostBlocks = INT32_MAX;
constexpr int64_t kLeastRows = 1024, kMostRows = 16384;  // (token, head) rows of a chunk
constexpr int64_t kChunksAtOnce = 8;                     // per SM: two run, the others balance the load

SelectedKernel* dq_kernel_for(const Problem& p, const Nsa& nsa, int arch) {
  static constexpr sm80::SelectedKernels (*kAll[])() = {
      sm80::selected_dq_kernels_64, sm80::selected_dq_kernels_128, sm80::selected_dq_kernels_192,
      sm80::selected_dq_kernels_256};
  return sm80::selected_kernel_for(kAll, p, nsa, arch);
}

int key_stages(const SelectedKeysKernel& k, int arch) {
  const int limit = cuda::shared_limit(arch);
  const int available = k.dim > 192 ? limit : limit / 2;  // two CTAs per SM, if they fit
  const int stages = std::min((available - k.fixed_bytes) / k.stage_bytes, sm80::kMostKeyStages);
  return stages >= 2 ? stages : std::min((limit - k.fixed_bytes) / k.stage_bytes, 2);
}
std::span<SelectedKeysKernel> key_kernels_for(const Problem& p, int arch) {
  for (const auto kernels : {sm80::selected_keys_kernels_64, sm80::selected_keys_kernels_128,
                             sm80::selected_keys_kernels_192, sm80::selected_keys_kernels_256}) {
    const auto all = kernels();
    if (all[0].dim >= p.dim_qk && all[0].dim_v >= p.dim_v && key_stages(all[0], arch) >= 2) return all;
  }
  return {};
}

int64_t padded(const Problem& p) { return round_up(p.len_q, sm80::kRowsOfPrepare); }
int64_t heads(const Problem& p) { return int64_t(p.batch) * p.heads_q; }
int tiles_per_block(const Nsa& nsa) { return int(ceil_div(nsa.s, sm80::kKeysOfTile)); }

int64_t chunk_of(const Problem& p, const ListBounds& most, const Device& d) {
  const int64_t group = sm80::heads_per_key(p);
  const int64_t even = ceil_div(most.pairs * group, std::max(d.units, 1) * kChunksAtOnce);
  return ceil_div(p.reproducible == Reproducible::batch ? kMostRows : std::clamp(even, kLeastRows, kMostRows), group);
}

struct Scratch { float2* row_stats; SelectedLists lists; float* partial; };
Scratch carve(Workspace& ws, const Plan& plan, const Nsa& nsa) {
  const Problem& p = plan.problem;
  const ListBounds most(p, nsa);
  const int64_t chunk = chunk_of(p, most, plan.device);
  const int64_t keys = most.partials(chunk) * tiles_per_block(nsa) * sm80::kKeysOfTile;
  Scratch s{};
  s.row_stats = ws.take<float2>(size_t(heads(p) * padded(p)));
  s.lists = carve_lists(ws, most, chunk);
  s.partial = ws.take<float>(size_t(keys * (p.dim_qk + p.dim_v)));
  return s;
}

Status supports(const Problem& p, const Device& d) {
  return sm80::selected_refusal(kWho, Pass::backward, p, d).half_gradients().status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const int arch = plan.device.arch;
  const SelectedKernel* k = dq_kernel_for(p, nsa, arch);
  if (!k || key_kernels_for(p, arch).empty())
    return Status::unsupported(kWho, ": has no kernel for dims ", p.dim_qk, " and ", p.dim_v,
                               " within the shared memory of ", plan.device.name);
  plan.tile_q = sm80::selected_rows(p, nsa, *k), plan.tile_k = k->tile_k;
  const ListBounds lists(p, nsa);
  const int64_t most = std::max({sm80::selected_blocks(p, nsa, *k), lists.pairs, lists.lists * tiles_per_block(nsa),
                                 lists.chunks(chunk_of(p, lists, plan.device)) * tiles_per_block(nsa),
                                 heads(p) * padded(p) / sm80::kRowsOfPrepare});
  if (most > kMostBlocks) return Status::unsupported(kWho, ": ", most, " choices or blocks are over 2^31 - 1");
  Workspace count;
  carve(count, plan, nsa);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status fits(const Plan&, const Args& a) {
  if (a.given(Role::cache_index))
    return Status::unsupported(kWho, ": does not support cache_index: sequences that share keys would write the same "
                               "gradient");
  return check_aligned16(kWho, a, {Role::q, Role::k, Role::v, Role::out, Role::d_out, Role::dq, Role::dk, Role::dv});
}

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, const cuda::Launcher& launcher)
      : p_(plan.problem), a_(a), nsa_(nsa_of(plan.problem)), arch_(plan.device.arch), launcher_(launcher),
        type_(plan.problem.dtype.q == DType::bf16), rows_(*dq_kernel_for(plan.problem, nsa_, arch_)),
        scratch_(carve(ws, plan, nsa_)) {
    x_ = sm80::selected_params(p_, a, nsa_, rows_, arch_);
    x_.d_out = sm80::byte_rows(a[Role::d_out]);
    if (a.given(Role::dq)) x_.out = sm80::byte_rows(a[Role::dq]);
    x_.row_stats = scratch_.row_stats, x_.padded = int(padded(p_));
  }
  Status run() {
    if (Status s = prepare(); !s.ok()) return s;
    if (a_.given(Role::dq))
      if (Status s = launcher_({.kernel = cuda::address(rows_.function[type_]), .ready = &rows_.ready[type_],
                                .blocks = sm80::selected_blocks(p_, nsa_, rows_), .threads = rows_.threads,
                                .shared_bytes = cuda::shared_limit(arch_)},
                               x_);
          !s.ok())
        return s;
    return a_.given(Role::dk) || a_.given(Role::dv) ? keys() : Status::good();
  }

 private:
  Status prepare() const {
    static constinit cuda::SharedMemoryOptIn ready[2];
    sm80::BackwardParams x{};
    x.problem = p_, x.args = x_.args, x.uniform = x_.uniform, x.seq = x_.seq;
    x.rows = scratch_.row_stats, x.padded = x_.padded;
    const auto kernel = type_ ? sm80::prepare_kernel<Bf16, false> : sm80::prepare_kernel<F16, false>;
    return launcher_({.kernel = cuda::address(kernel), .ready = &ready[type_],
                      .blocks = heads(p_) * padded(p_) / sm80::kRowsOfPrepare, .threads = 256},
                     x);
  }
  Status keys() {
    static constinit cuda::SharedMemoryOptIn ready[2];
    for (const Role r : {Role::dk, Role::dv})
      if (a_.given(r))
        if (Status s = sm80::clear_rows(launcher_, a_[r]); !s.ok()) return s;
    const SelectedLists& lists = scratch_.lists;
    if (Status s = transpose_lists(launcher_, x_, lists); !s.ok()) return s;
    sm80::SelectedKeysParams y{x_, lists, tiles_per_block(nsa_), 0, scratch_.partial};
    const int64_t chunks = ListBounds(p_, nsa_).chunks(lists.chunk) * y.tiles_per_block;
    for (SelectedKeysKernel& k : key_kernels_for(p_, arch_)) {
      if (!(k.with_k && a_.given(Role::dk)) && !(k.with_v && a_.given(Role::dv))) continue;
      y.stages = key_stages(k, arch_);
      if (Status s = launcher_({.kernel = cuda::address(k.function[type_]), .ready = &k.ready[type_], .blocks = chunks,
                                .threads = sm80::kKeyWarps * 32,
                                .shared_bytes = k.fixed_bytes + y.stages * k.stage_bytes},
                               y);
          !s.ok())
        return s;
    }
    const auto combine = type_ ? sm80::selected_combine_kernel<Bf16> : sm80::selected_combine_kernel<F16>;
    return launcher_({.kernel = cuda::address(combine), .ready = &ready[type_],
                      .blocks = int64_t(lists.lists) * y.tiles_per_block, .threads = 256},
                     y);
  }

  const Problem& p_;
  const Args& a_;
  const Nsa nsa_;
  const int arch_;
  const cuda::Launcher& launcher_;
  const int type_;
  SelectedKernel& rows_;
  const Scratch scratch_;
  sm80::SelectedParams x_{};
};

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  const cuda::Launcher launcher(kWho, plan.problem, a[Role::q].device_index, stream);
  return launcher.status.ok() ? Run(plan, a, ws, launcher).run() : launcher.status;
}

}  // namespace

extern const Backend sm80_selected_backward{
    .name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
