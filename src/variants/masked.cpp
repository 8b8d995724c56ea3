// The slow, obvious way: dense attention with a bias that hides what a sparse problem does not show. It needs memory
// for every pair, and is there to be compared with: chosen only by name. Block lists, dilated attention that is one
// softmax, and attention over every token's own list.
#include "core/masked.h"
#include "machine/cpu/each.h"
#include "machine/cuda/masked.h"
#include "plan/backend.h"
#include "variants/parts.h"

namespace attune {
namespace {

Status no(const auto&... why) { return Status::no("masked_dense: ", why...); }

Problem dense_of(const Problem& p) {
  Problem part = p;
  part.variant = {}, part.mask.blocks = {};
  part.set(Option::bias);
  part.dtype.bias = DType::f32;
  return part;
}

Status supports(const Problem& p, const Device&) {
  const std::string_view w = word(p.variant);
  if (w.empty() && !p.mask.blocks.q) return no("is for what hides pairs: a list of blocks, dilated, selected");
  if (!w.empty() && (p.mask.blocks.q || (w != "dilated" && w != "selected"))) return no("cannot say ", w, " as a bias");
  if (p.has(Option::bias) || p.has(Option::block_bias)) return no("has a bias of its own");
  if (w != "dilated") return Status::good();
  const Dilated d = dilated_of(p);
  if (d.detached) return no("has only the exact gradient");
  if (d.norm == Dilated::Norm::divide || (d.norm == Dilated::Norm::none && d.sums()))
    return no("is one softmax: norm=lse, or none where every head has one branch");
  return Status::good();
}

MaskedRows carve(Workspace& ws, const Problem& p, const Args& a) {
  MaskedRows x{.problem = p, .args = dense(a)};
  x.bias = ws.take<float>(size_t(x.tasks()) * size_t(p.len_k));
  if (word(p.variant) == "dilated") {
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

Status shape(Plan& plan, const Planner& planner) {
  if (Status s = plan_part("masked_dense", dense_of(plan.problem), planner, plan); !s.ok()) return s;
  Workspace count;
  carve(count, plan.problem, {});
  count.take<std::byte>(plan.parts[0].workspace_bytes);
  plan.workspace_bytes = count.used;
  return Status::good();
}

Status steps(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Problem& p = plan.problem;
  const Plan& part = plan.parts[0];
  const MaskedRows x = carve(ws, p, a);
  if (plan.device.kind == DeviceKind::cpu)
    each_task(x.tasks(), 16, [&](int64_t task) { x.run(task, 0, 1, [] {}); });
  else if (Status s = cuda::fill_masked(x, plan.device.index, stream); !s.ok()) return s;
  Args with = a;
  for (const Role r : {Role::block_begin, Role::block_column, Role::block_begin_k, Role::block_row_k}) with[r] = {};
  for (int n = int(Role::variant); n < int(Role::count); ++n) with[Role(n)] = {};
  const int64_t row = int64_t(p.heads_q) * p.len_k;
  with[Role::bias] = {.data = x.bias, .dtype = DType::f32, .device = plan.device.kind,
                      .device_index = plan.device.index, .extent = {p.batch, p.len_q, p.heads_q, p.len_k},
                      .stride = {p.batch > 1 ? p.len_q * row : 0, p.len_q > 1 ? row : 0, p.heads_q > 1 ? p.len_k : 0}};
  return part.backend->run(part, with, {ws.take<std::byte>(part.workspace_bytes)}, stream);
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return of_whole(plan, steps(plan, a, ws, stream));
}

}  // namespace

extern const Backend masked_dense;
const Backend masked_dense{
    .name = "masked_dense", .only_by_name = true, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
