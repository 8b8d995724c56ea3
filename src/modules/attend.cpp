// SPDX-License-Identifier: Apache-2.0
#include "modules/attend.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/variant/variants.h"
#include "machine/cuda/nvtx.h"
#include "machine/tensor_ops.h"

namespace attune {
namespace {

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t bytes_of(const Extents& e, DType t) {
  return rounded(size_t(e.batch) * size_t(e.seq) * size_t(e.head) * size_t(e.dim) * size_t(size_of(t)));
}

// A GPU profiler shows the run under its problem line.
Status run(const Plan& plan, const Args& a, const Run& r) {
  const cuda::Range range(plan.device.kind == DeviceKind::cuda ? &plan.problem : nullptr);
  return plan.backend->run(plan, a, {.data = r.scratch}, r.stream);
}

// Memory that is never read: fake addresses with the real alignment, for checks that only look at addresses.
Run pretended(const Graph& g) {
  std::byte* somewhere = reinterpret_cast<std::byte*>(uintptr_t(1) << 40);
  Run r{.graph = g};
  r.tape = r.workspace = r.scratch = r.parameters = r.parameter_gradients = r.constants = somewhere;
  r.seed = {.data = somewhere, .dtype = DType::i64, .device = g.device.kind, .extent = {1, 1, 1, 2}};
  for (Tensor* list : {r.given, r.gradient_given})
    for (int n = 0; n < int(Argument::count); ++n) list[n].data = somewhere, list[n].device = g.device.kind;
  return r;
}

Role gradient_of(Role r) {
  switch (r) {
    case Role::q: return Role::dq;
    case Role::k: return Role::dk;
    case Role::v: return Role::dv;
    case Role::sinks: return Role::d_sinks;
    default: return r >= Role::variant && r < Role::d_variant ? Role(int(r) + kVariantTensors) : Role::count;
  }
}

Problem backward_of(Problem p) {
  p.pass = Pass::backward, p.dtype.grad = p.dtype.q;
  return p;
}

// Plans a problem with the backend that the planner is forced to, else the first that also accepts these arguments.
Status plan_that_fits(const Planner& with, const Problem& p, const Args& a, Plan& out) {
  std::vector<const Backend*> unfit;
  for (;;) {
    Planner planner = with;
    planner.unfit = unfit;
    if (Status s = planner.plan(p, out); !s.ok()) return s;
    const Status fit = out.backend->fits ? out.backend->fits(out, a) : Status::good();
    if (fit.ok() || !planner.forced.empty()) return fit;
    unfit.push_back(out.backend);
  }
}

}  // namespace

Status Attend::make(Graph& g, const Problem& p, std::span<const Rule> rules, const std::vector<Source>& sources,
                    const AttendSettings& settings, int out, Attend*& made) {
  // The weights of the two compressions have the same names: sources with equal names are taken in order.
  const auto find = [&](std::string_view name, int before = 0) {
    return std::find_if(sources.begin(), sources.end(), [&](const Source& s) { return s.name == name && !before--; });
  };
  Attend& step = g.step<Attend>();
  made = &step;
  step.problem_ = p, step.settings_ = settings, step.out_ = out, step.outputs = {out};
  const auto bind = [&](Role role, const Source& from, bool smooth = true) {
    Bound b{.role = role, .from = from, .gradient = smooth ? gradient_of(role) : Role::count};
    if (from.value >= 0 && b.gradient != Role::count) {
      b.input = int(step.inputs.size());
      step.inputs.push_back(from.value);
    }
    step.bound_.push_back(std::move(b));
  };
  for (int r = 0; r < int(Role::variant); ++r)
    if (const auto s = find(name(Role(r))); s != sources.end()) bind(Role(r), *s);
  if (p.has(Option::dropout)) step.no_seed_ = g.constant(DType::i64, {1, 1, 1, 2}, std::array<int64_t, 2>{}.data());
  const Declared own = declared(p, step.args(pretended(g)));
  for (int n = 0; n < kVariantTensors; ++n) {
    const VariantTensor& t = own.tensor[n];
    if (t.use == Use::none || t.use == Use::result) continue;
    if (t.use == Use::saved) {
      const int kept = g.value(t.extent, t.dtype);
      step.bound_.push_back({.role = variant_tensor(n), .from = {.name = std::string(t.name), .value = kept}});
      step.outputs.push_back(kept);
    } else if (const auto s = find(t.name, int(std::count_if(own.tensor, own.tensor + n, [&](const auto& other) {
                 return other.name == t.name;
               }))); s != sources.end()) {
      bind(variant_tensor(n), *s, t.use == Use::input);
    } else if (!t.optional) {
      return Status::unsupported("module: its attention requires ", t.name, ", which a module does not provide, in: ",
                                 name(p));
    }
  }
  if (own.dense || (own.required | own.optional) >> int(Role::lse) & 1) {
    step.lse_ = g.value({p.batch, g.values[size_t(out)].extent.seq, p.heads_q, 1}, DType::f32);
    step.outputs.push_back(step.lse_);
  }
  const Declared back = declared(backward_of(p), step.args(pretended(g)));
  if (!back.dense) step.backward_roles_ = back.required | back.optional;
  for (const Bound& b : step.bound_)
    step.weight_bytes_.push_back(
        b.from.weight >= 0 ? bytes_of(g.weights[size_t(b.from.weight)].extent, DType::f32) : 0);
  for (const int v : step.inputs)
    step.value_bytes_.push_back(bytes_of(g.values[size_t(v)].extent, g.values[size_t(v)].dtype));
  return step.plan(g, rules);
}

Status Attend::plan(const Graph& g, std::span<const Rule> rules) {
  keep.assign(inputs.size(), 0.f);
  const Run r = pretended(g);
  std::vector<Apart> apart;
  const Planner planner{.device = g.device, .rules = rules, .forced = settings_.backend};
  if (Status s = plan_that_fits(planner, problem_, forward_args(r), forward_); !s.ok()) return s;
  no_backward_ = plan_that_fits(planner, backward_of(problem_), gradient_args(r, apart), backward_);
  return Status::good();
}

Args Attend::forward_args(const Run& r) const {
  Args a = args(r);
  a[Role::block_begin_k] = a[Role::block_row_k] = {};  // backward only
  return a;
}

Args Attend::args(const Run& r) const {
  Args a;
  for (const Bound& b : bound_)
    a[b.role] = b.from.value >= 0    ? r.value(b.from.value)
                : b.from.weight >= 0 ? r.weight(b.from.weight)
                : b.from.seed        ? r.seed
                                     : r.constant(b.from.constant);
  a[Role::out] = r.value(out_);
  if (lse_ >= 0) a[Role::lse] = r.value(lse_);
  a.softcap = settings_.softcap, a.dropout = settings_.dropout, a.scale = settings_.scale;
  a.communicator = r.communicator;
  if (no_seed_ < 0) return a;
  // Without a seed nothing is dropped, but backends still read one.
  a[Role::seed] = r.seed.data ? r.seed : r.constant(no_seed_);
  if (!r.seed.data) a.dropout = 0;
  return a;
}

bool Attend::is_apart(const Bound& b) const { return b.input >= 0 && keep[size_t(b.input)] != 0.f; }

Args Attend::gradient_args(const Run& r, std::vector<Apart>& apart) const {
  Args a = args(r);
  a[Role::d_out] = r.gradient(out_);
  std::byte* room = r.scratch + rounded(backward_.workspace_bytes);
  for (size_t n = 0; n < bound_.size(); ++n) {
    const Bound& b = bound_[n];
    if (b.gradient == Role::count || (b.from.weight >= 0 && !r.parameter_gradients)) continue;
    Tensor to = b.from.weight >= 0 ? r.weight_gradient(b.from.weight) : r.gradient(b.from.value);
    if (b.from.weight >= 0 ? r.keep != 0.f : is_apart(b)) {
      Tensor made = to;
      made.data = room, made.stride = compact(made.extent);
      room += b.from.weight >= 0 ? weight_bytes_[n] : value_bytes_[size_t(b.input)];
      apart.push_back({made, to});
      to = made;
    }
    a[b.gradient] = to;
  }
  for (int role = 0; role < int(Role::variant); ++role)  // a variant may not take out or lse in its backward
    if (!(backward_roles_ >> role & 1)) a[Role(role)] = {};
  return a;
}

size_t Attend::scratch(Pass pass) const {
  if (pass == Pass::forward) return forward_.workspace_bytes;
  size_t bytes = rounded(backward_.workspace_bytes);
  for (const size_t w : weight_bytes_) bytes += w;
  for (const Bound& b : bound_)
    if (is_apart(b)) bytes += value_bytes_[size_t(b.input)];
  return bytes;
}

Status Attend::check(const Run& r) const {
  if (Status s = attune::check(problem_, forward_args(r)); !s.ok()) return s.after("module: ");
  std::vector<Apart> apart;
  if (!no_backward_.ok()) return Status::good();
  return attune::check(backward_of(problem_), gradient_args(r, apart)).after("module: backward: ");
}

Status Attend::forward(const Run& r) const { return run(forward_, forward_args(r), r); }

Status Attend::backward(const Run& r) const {
  if (!no_backward_.ok()) return no_backward_;
  std::vector<Apart> apart;
  const Args a = gradient_args(r, apart);
  if (Status s = run(backward_, a, r); !s.ok()) return s;
  for (const Apart& one : apart)
    if (Status s = add(one.made, one.to, r.stream); !s.ok()) return s;
  return Status::good();
}

std::string Attend::why() const {
  return join(name(problem_), "\n  forward: ", forward_.backend->name, ", ", forward_.why, forward_.refused, "\n  ",
              no_backward_.ok() ? join("backward: ", backward_.backend->name, ", ", backward_.why, backward_.refused)
                                : join("backward: ", no_backward_.message));
}

}  // namespace attune
