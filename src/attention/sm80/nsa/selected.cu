// SPDX-License-Identifier: Apache-2.0
// sm80_selected: host side of sm80/nsa/selected.h. Where the grid would leave SMs idle, it splits the lists and
// combines the splits, as decode does.
#include "attention/sm80/decode/combine.h"
#include "attention/sm80/nsa/selected_host.h"

namespace attune {
namespace {

using sm80::SelectedKernel;

constexpr std::string_view kWho = "sm80_selected";
constexpr int64_t kMostBlocks = INT32_MAX;

SelectedKernel* kernel_for(const Problem& p, const Nsa& nsa, int arch) {
  static constexpr sm80::SelectedKernels (*kAll[])() = {sm80::selected_kernels_64, sm80::selected_kernels_128,
                                                        sm80::selected_kernels_192, sm80::selected_kernels_256};
  return sm80::selected_kernel_for(kAll, p, nsa, arch);
}

struct Partial { float *out, *lse; };
Partial carve(Workspace& ws, const Plan& plan) {
  if (plan.splits == 1) return {};
  const Problem& p = plan.problem;
  const size_t rows = size_t(plan.splits) * size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_q);
  Partial made;
  made.out = ws.take<float>(rows * size_t(p.dim_v));
  made.lse = ws.take<float>(rows);
  return made;
}

Status supports(const Problem& p, const Device& d) {
  return sm80::selected_refusal(kWho, Pass::forward, p, d).out_like_q_or_f32().status();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const SelectedKernel* k = kernel_for(p, nsa, plan.device.arch);
  if (!k)
    return Status::unsupported(kWho, ": has no kernel for dims ", p.dim_qk, " and ", p.dim_v,
                               " within the shared memory of ", plan.device.name);
  plan.tile_q = sm80::selected_rows(p, nsa, *k), plan.tile_k = k->tile_k, plan.splits = 1;
  const int64_t blocks = sm80::selected_blocks(p, nsa, *k), sms = plan.device.units;
  const int64_t entries = std::min<int64_t>(nsa.n, ceil_div(p.len_k, nsa.s));  // entries that can count
  if (p.reproducible != Reproducible::batch && blocks > 0 && blocks < sms)
    plan.splits = int(std::max<int64_t>(1, std::min({sms / blocks, entries, int64_t(sm80::kMostSplits)})));
  if (std::max(blocks * plan.splits, int64_t(p.batch) * p.heads_q * p.len_q) > kMostBlocks)
    return Status::unsupported(kWho, ": ", blocks * plan.splits, " blocks are over 2^31 - 1");
  Workspace count;
  carve(count, plan);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// Loads and stores are 16 bytes wide.
Status fits(const Plan&, const Args& a) { return check_aligned16(kWho, a, {Role::q, Role::k, Role::v, Role::out}); }

Status combine(const cuda::Launcher& launcher, const Plan& plan, const sm80::SelectedParams& x) {
  const Problem& p = plan.problem;
  sm80::DecodeParams params{};
  params.out = x.out, params.splits = x.splits, params.group = x.group;
  params.dim_v = p.dim_v, params.most_q = p.len_q;
  params.uniform = x.uniform, params.place.seq = x.seq;
  params.partial_out = x.partial_out, params.partial_lse = x.partial_lse;
  params.problem = p, params.args = x.args;
  return sm80::combine_splits(launcher, params, plan.device.arch);
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  if (Status s = fits(plan, a); !s.ok()) return s;
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  const int arch = plan.device.arch;
  SelectedKernel& k = *kernel_for(p, nsa, arch);
  const int64_t blocks = sm80::selected_blocks(p, nsa, k) * plan.splits;
  if (!blocks) return Status::good();
  sm80::SelectedParams params = sm80::selected_params(p, a, nsa, k, arch);
  const Partial partial = carve(ws, plan);
  params.out = sm80::byte_rows(a[Role::out]), params.splits = Divisor(uint32_t(plan.splits));
  params.partial_out = partial.out, params.partial_lse = partial.lse;
  const cuda::Launcher launcher(kWho, p, a[Role::q].device_index, stream);
  if (!launcher.status.ok()) return launcher.status;
  const int type = p.dtype.q == DType::bf16;
  const Status s = launcher({.kernel = cuda::address(k.function[type]), .ready = &k.ready[type], .blocks = blocks,
                             .threads = k.threads, .shared_bytes = cuda::shared_limit(arch)},
                            params);
  return !s.ok() || plan.splits == 1 ? s : combine(launcher, plan, params);
}

}  // namespace

extern const Backend sm80_selected{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
