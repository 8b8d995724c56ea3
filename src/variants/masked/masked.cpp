// SPDX-License-Identifier: Apache-2.0
// The slow and obvious method: dense attention with a bias that hides every pair that a sparse problem masks. It needs
// memory for every pair and exists for comparison, so it is selected only by name. It covers block lists with
// block_bias, bands, dilated attention that is one softmax, and attention over per-token lists. Adaptive and native
// sparse attention select their lists as usual, and every attention inside them then runs this way.
#include <algorithm>

#include "core/variant/dilated_offsets.h"
#include "core/variant/masked.h"
#include "machine/cpu/each.h"
#include "variants/masked/gpu.h"
#include "plan/backend.h"
#include "variants/sub_plans.h"

namespace attune {
namespace {

constexpr std::string_view kWho = "masked_dense";

Status no(const auto&... why) { return Status::unsupported(kWho, ": ", why...); }

// A variant that first selects what is visible and then attends to it.
bool chooses(const Problem& p) { return word(p.variant) == "adaptive" || word(p.variant) == "nsa"; }
bool by_band(const Problem& p) { return word(p.variant).empty() && !p.mask.blocks.q; }

Problem dense_of(const Problem& p) {
  Problem part = p;
  part.variant = {}, part.mask.blocks = {};
  if (by_band(p)) part.mask = {};
  part.clear(Option::block_bias), part.set(Option::bias);
  part.dtype.bias = DType::f32;
  return part;
}

Status supports(const Problem& p, const Device&) {
  const std::string_view w = word(p.variant);
  if (p.has(Option::bias)) return no("does not support the option bias, which it uses itself");
  if (chooses(p)) return Status::good();
  if (by_band(p)) {
    if (p.mask.kind == MaskKind::full) return no("requires something to hide: a band, block lists or a variant");
    for (const Option o : {Option::alibi, Option::dropout, Option::append})
      if (p.has(o)) return no("replaces a band by a bias, which does not support the option ", name(o));
    return Status::good();
  }
  if (!w.empty() && (p.mask.blocks.q || (w != "dilated" && w != "selected")))
    return no("cannot express the variant ", w, p.mask.blocks.q ? " with block lists" : "", " as a bias");
  if (p.has(Option::block_bias) && p.pass == Pass::backward && p.has(Option::accumulate))
    return no("does not accumulate a gradient of block_bias");
  if (w != "dilated") return Status::good();
  if (dilated_offsets(p) != DilatedOffsets::cyclic) return no("requires offsets=cyclic of dilated");
  const Dilated d = dilated_of(p);
  if (d.detached) return no("computes only the exact gradient, not a detached one");
  if (d.norm == Dilated::Norm::divide || (d.norm == Dilated::Norm::none && d.sums()))
    return no("is one softmax; it requires norm=lse, or norm=none with one branch for every head");
  return Status::good();
}

MaskedRows carve(Workspace& ws, const Problem& p, const Args& a) {
  MaskedRows x{.problem = p, .args = dense(a)};
  const size_t pairs = size_t(x.tasks()) * size_t(p.len_k);
  x.bias = ws.take<float>(pairs);
  if (p.has(Option::block_bias) && p.pass == Pass::backward) x.d_bias = ws.take<float>(pairs);
  if (by_band(p)) {
    x.by = MaskedBy::band;
  } else if (word(p.variant) == "dilated") {
    const Dilated d = dilated_of(p);
    x.by = MaskedBy::dilated, x.branches = d.branches;
    x.groups = d.mode == Dilated::Mode::headgroup ? d.branches : 0;
    const int length = a[Role::q].extent.seq;  // a segment longer than the sequence is the sequence
    for (int n = 0; n < d.branches; ++n)
      x.rate[n] = d.rate[n], x.segment[n] = d.segment[n] < length ? d.segment[n] : p.len_q;
  } else if (word(p.variant) == "selected") {
    x.by = MaskedBy::selected, x.selected = a[variant_tensor(0)], x.selected_size = nsa_of(p).s;
  }
  return x;
}

// The variant's own composition, with this backend for every attention inside.
Status shape_chooser(Plan& plan, const Planner& planner) {
  const std::string_view w = word(plan.problem.variant);
  if (Status s = add_part(kWho, plan.problem, {.device = planner.device, .rules = planner.rules, .forced = w}, plan);
      !s.ok())
    return s;
  Plan& inside = plan.sub_plans[0];
  size_t scratch = 0, was = 0;  // the last buffer of a composition's workspace is the scratch of its largest part
  for (Plan& part : inside.sub_plans) {
    was = std::max(was, part.workspace_bytes);
    const std::string_view step = word(part.problem.variant);
    if (step.empty() || step == "selected") {
      Plan by_bias;
      const Planner forced{.device = planner.device, .rules = planner.rules, .forced = kWho};
      if (Status s = forced.plan(part.problem, by_bias); !s.ok()) return s.after(kWho, ": in ", w, ": ");
      part = std::move(by_bias);
    }
    scratch = std::max(scratch, part.workspace_bytes);
  }
  inside.workspace_bytes += scratch - was;
  plan.workspace_bytes = inside.workspace_bytes;
  return Status::good();
}

Status shape(Plan& plan, const Planner& planner) {
  if (chooses(plan.problem)) return shape_chooser(plan, planner);
  if (Status s = plan_part(kWho, dense_of(plan.problem), planner, plan); !s.ok()) return s;
  Workspace count;
  carve(count, plan.problem, {});
  count.take<std::byte>(plan.sub_plans[0].workspace_bytes);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// The arguments of the dense part, without its bias.
Args without_lists(const Problem& p, const Args& a) {
  Args with = a;
  for (const Role r : {Role::block_begin, Role::block_column, Role::block_begin_k, Role::block_row_k, Role::bias,
                       Role::d_bias})
    with[r] = {};
  if (by_band(p)) with[Role::positions] = {};
  for (int n = int(Role::variant); n < int(Role::count); ++n) with[Role(n)] = {};
  return with;
}

Status fits(const Plan& plan, const Args& a) {
  const Plan& part = plan.sub_plans[0];
  if (!part.backend->fits) return Status::good();
  return part.backend->fits(part, chooses(plan.problem) ? a : without_lists(plan.problem, a));
}

Status steps(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  const Plan& part = plan.sub_plans[0];
  const bool on_cpu = plan.device.kind == DeviceKind::cpu;
  if (chooses(p)) return part.backend->run(part, a, ws, stream);
  const MaskedRows x = carve(ws, p, a);
  if (on_cpu) each_task(x.tasks(), 16, [&](int64_t task) { x.run(task, 0, 1, [] {}); });
  else if (Status s = cuda::fill_masked(x, plan.device.index, stream); !s.ok()) return s;
  Args with = without_lists(p, a);
  const int64_t row = int64_t(p.heads_q) * p.len_k;
  const auto of_pairs = [&](float* data) {
    return Tensor{.data = data, .dtype = DType::f32, .device = plan.device.kind, .device_index = plan.device.index,
                  .extent = {p.batch, p.len_q, p.heads_q, p.len_k},
                  .stride = {p.batch > 1 ? p.len_q * row : 0, p.len_q > 1 ? row : 0, p.heads_q > 1 ? p.len_k : 0}};
  };
  const bool sums = x.d_bias && a.given(Role::d_bias);
  with[Role::bias] = of_pairs(x.bias);
  if (sums) with[Role::d_bias] = of_pairs(x.d_bias);
  if (Status s = part.backend->run(part, with, {ws.take<std::byte>(part.workspace_bytes)}, stream); !s.ok() || !sums)
    return s;
  if (!on_cpu) return cuda::sum_masked(x, plan.device.index, stream);
  float* const to = a.row<float>(Role::d_bias);
  each_task(p.mask.blocks.bound, 1, [&](int64_t e) { to[e] = float(x.entry_gradient(int(e), 0, 1)); });
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return of_whole(plan, steps(plan, a, ws, stream));
}

}  // namespace

extern const Backend masked_dense;
const Backend masked_dense{
    .name = kWho, .only_by_name = true, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
