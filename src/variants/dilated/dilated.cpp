// dilated: plain attention on the views of calls.h, merged. It has no kernels of its own, on CPUs and GPUs alike.
//   forward   norm=lse: the branches accumulate into one running f32 (out, lse): one softmax over all their keys
//             norm=divide, none: each branch separately, then summed
//   backward  of the merged softmax: every branch is a plain backward that is given the merged out and lse, so its
//             weights are those of the union and its D is the row's; gradients accumulate in f32. Where D or the
//             weights belong to one branch (norm=divide, none, gradient=detached), its forward is recomputed first.
//
// Sums are wider than the results (f32 rows for f16 tensors), so they exist for one chunk of the sequence at a time.
// Memory stays linear, with a small factor, at any length. If the tensors are f32, they hold the sums themselves.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "machine/tensor_ops.h"
#include "variants/dilated/shape.h"
#include "variants/sub_plans.h"

namespace attune {
namespace {

constexpr std::string_view kWho = "dilated";

// Finds the plan of this size with the tightest length bounds; with `near`, bounds at most 1/8 above the lengths.
const Plan* find(const std::vector<Plan>& plans, const Problem& wanted, bool near) {
  const Plan* best = nullptr;
  const auto length = [](const Problem& p) { return int64_t(p.len_q) + p.len_k; };
  for (const Plan& plan : plans) {
    const Problem& p = plan.problem;
    const bool serves = p.pass == wanted.pass && p.options == wanted.options && p.dtype.out == wanted.dtype.out &&
                        p.dtype.grad == wanted.dtype.grad && p.batch == wanted.batch && p.heads_q == wanted.heads_q &&
                        p.heads_kv == wanted.heads_kv && p.len_q >= wanted.len_q && p.len_k >= wanted.len_k;
    if (!serves || (near && length(p) * 8 > length(wanted) * 9)) continue;
    if (!best || length(p) < length(best->problem)) best = &plan;
  }
  return best;
}

Status supports(const Problem& p, const Device&) {
  if (word(p.variant) != kWho) return not_variant(kWho, kWho, p);
  return valid_dilated(p);
}

// A tensor whose row 0 is row `base` of the sequence.
struct Based {
  Tensor t{};
  int64_t base = 0;
  explicit operator bool() const { return t.data != nullptr; }
};

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, Stream stream)
      : plan_(plan), p_(plan.problem), a_(a), s_(p_), ws_(ws), stream_(stream), length_(a[Role::q].extent.seq) {
    s_.chunk = plan.tile_q;
    between_ = carve_dilated(ws_, p_, s_, a[Role::q]);
  }

  Status run() {
    for (first_ = 0; first_ < length_; first_ = last_) {
      last_ = std::min(first_ + s_.chunk, length_);
      if (Status s = s_.backward ? backward() : forward(); !s.ok()) return s;
    }
    return Status::good();
  }

 private:
  // The rows of the chunk.
  Tensor rows(const Based& x) const { return pick_rows(x.t, first_ - x.base, int32_t(last_ - first_)); }
  Based given(Role r) const { return {a_[r], 0}; }
  // The sums of a chunk if they are separate, else the tensor itself.
  Based sums(Role r, const Tensor& apart) const { return s_.sums_apart ? Based{apart, first_} : given(r); }
  Status clear(const Based& x, float value) { return x ? fill(rows(x), value, stream_) : Status::good(); }
  // Converts the sums to the result.
  Status finish(Role r, const Based& x) {
    const float factor = s_.d.factor();
    if (!a_.given(r) || (!s_.sums_apart && factor == 1.f)) return Status::good();
    return scale_add(rows(x), factor, rows(given(r)), 0.f, stream_);
  }

  Status forward() {
    const Based out = sums(Role::out, between_.out);
    const Based lse = a_.given(Role::lse) ? given(Role::lse) : Based{between_.lse, first_};
    if (s_.clears) {
      if (Status s = clear(out, 0.f); !s.ok()) return s;
      if (Status s = clear(lse, -INFINITY); !s.ok()) return s;
    }
    const Based own{between_.own_out, first_}, own_lse{between_.own_lse, first_};
    const Status done = each_call(s_.d, p_, length_, first_, last_, [&](const DilatedCall& call) {
      if (!own) return attend(call, s_.parts(call.branch).part[0], out, lse);
      if (Status s = attend(call, DilatedPart::write, own, own_lse); !s.ok()) return s;
      const auto view = [&](const Based& x) { return call.q.of(x.t, x.base); };
      if (Status s = add(view(own), view(out), stream_); !s.ok()) return s;
      return merge({}, view(own_lse), {}, view(lse), stream_);
    });
    return done.ok() ? finish(Role::out, out) : done;
  }

  Status backward() {
    gradients_[0] = sums(Role::dq, between_.dq);
    gradients_[1] = sums(Role::dk, between_.dk), gradients_[2] = sums(Role::dv, between_.dv);
    for (const Based& x : gradients_)
      if (Status s = s_.clears ? clear(x, 0.f) : Status::good(); !s.ok()) return s;
    const Based own{between_.own_out, first_}, own_lse{between_.own_lse, first_};
    if (own && !own_lse)  // the given out is a scaled copy
      if (Status s = scale_add(rows(given(Role::out)), 1 / s_.d.factor(), rows(own), 0.f, stream_); !s.ok()) return s;
    const Based out = own ? own : given(Role::out);
    const Based lse = own_lse && s_.d.norm != Dilated::Norm::lse ? own_lse : given(Role::lse);
    const Status done = each_call(s_.d, p_, length_, first_, last_, [&](const DilatedCall& call) {
      const DilatedShape::Parts parts = s_.parts(call.branch);
      for (int n = 0; n < parts.count; ++n) {
        const bool again = parts.part[n] == DilatedPart::again;
        if (Status s = attend(call, parts.part[n], out, again ? own_lse : lse); !s.ok()) return s;
      }
      return Status::good();
    });
    if (!done.ok()) return done;
    constexpr Role kRoles[] = {Role::dq, Role::dk, Role::dv};
    for (int n = 0; n < 3; ++n)
      if (Status s = finish(kRoles[n], gradients_[n]); !s.ok()) return s;
    return Status::good();
  }

  Status attend(const DilatedCall& call, DilatedPart part, const Based& out, const Based& lse) {
    const Plan* plan = find(plan_.sub_plans, s_.problem(p_, call, part), false);
    if (plan) return attend(*plan, call, out, lse);
    for (int b = 0; b < call.q.along_batch.count; ++b)
      for (int h = 0; h < call.k.along_head.count; ++h) {
        const DilatedCall one = single(call, b, h);
        plan = find(plan_.sub_plans, s_.problem(p_, one, part), false);
        if (!plan) return Status::failure(Code::internal, "has no plan for '", name(s_.problem(p_, one, part)), "'");
        if (Status s = attend(*plan, one, out, lse); !s.ok()) return s;
      }
    return Status::good();
  }

  Status attend(const Plan& plan, const DilatedCall& call, const Based& out, const Based& lse) {
    Args part;
    part.scale = a_.scale;
    const auto put = [&](Role r, const ViewOf& view, const Based& x) {
      if (x) part[r] = view.of(x.t, x.base);
    };
    put(Role::q, call.q, given(Role::q)), put(Role::k, call.k, given(Role::k)), put(Role::v, call.k, given(Role::v));
    put(Role::out, call.q, out), put(Role::lse, call.q, lse);
    if (plan.problem.pass == Pass::backward) {
      put(Role::d_out, call.q, given(Role::d_out)), put(Role::d_lse, call.q, given(Role::d_lse));
      put(Role::dq, call.q, gradients_[0]), put(Role::dk, call.k, gradients_[1]), put(Role::dv, call.k, gradients_[2]);
    }
    return plan.backend->run(plan, part, ws_, stream_);
  }

  const Plan& plan_;
  const Problem& p_;
  const Args& a_;
  DilatedShape s_;
  Workspace ws_;
  const Stream stream_;
  const int64_t length_;
  int64_t first_ = 0, last_ = 0;  // the chunk
  DilatedBetween between_{};
  Based gradients_[3]{};
};

// Strides of views are sums of the tensors' strides, so alignment carries over.
Status fits(const Plan& plan, const Args& a) {
  Args seen = a;
  if (DilatedShape(plan.problem).sums_apart)
    for (const Role r : {Role::dq, Role::dk, Role::dv}) seen[r] = {};
  for (const Plan& part : plan.sub_plans)
    if (part.backend->fits)
      if (Status s = part.backend->fits(part, seen); !s.ok()) return s.after(kWho, ": a part of it: ");
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return of_whole(plan, Run(plan, a, ws, stream).run());
}

Status shape(Plan& plan, const Planner& planner) { return shape_dilated(plan, planner, kLeastSums); }

}  // namespace

// Makes a plan for every call of a sequence of the problem's length. A shorter sequence has other numbers of segments.
// If no plan matches, its calls run one KV head and one sequence at a time, and there are plans for that too: for every
// number of query heads that share one.
Status shape_dilated(Plan& plan, const Planner& planner, int64_t least_sums) {
  const Problem& p = plan.problem;
  const DilatedShape s(p, least_sums);
  plan.tile_q = int(s.chunk);
  const int64_t length = p.len_q;
  // Rules are measured on compact tensors; these are strided views.
  const Planner plain{.device = planner.device};
  const auto need = [&](const DilatedCall& call, bool near) {
    const DilatedShape::Parts parts = s.parts(call.branch);
    for (int n = 0; n < parts.count; ++n) {
      const Problem part = s.problem(p, call, parts.part[n]);
      if (find(plan.sub_plans, part, near)) continue;
      if (Status t = add_part(kWho, part, plain, plan); !t.ok()) return t;
    }
    return Status::good();
  };
  // By whether it is the first branch to run, and the query heads of a KV head.
  std::map<std::pair<bool, int>, DilatedCall> longest;
  for (int64_t first = 0; first < length; first += s.chunk) {
    const int64_t last = std::min(first + s.chunk, length);
    const Status t = each_call(s.d, p, length, first, last, [&](const DilatedCall& call) {
      const DilatedCall one = single(call, 0, 0);
      DilatedCall& most = longest[{call.branch == branch_at(s.d, 0), one.q.along_head.count}];
      const int q = std::max(most.q.rows, call.q.rows), k = std::max(most.k.rows, call.k.rows);
      most = one;
      most.q.rows = q, most.k.rows = k;
      return need(call, true);
    });
    if (!t.ok()) return t;
  }
  for (const auto& [key, call] : longest)
    if (Status t = need(call, false); !t.ok()) return t;
  Workspace count;
  carve_dilated(count, p, s, {});
  size_t scratch = 0;
  for (const Plan& part : plan.sub_plans) scratch = std::max(scratch, part.workspace_bytes);
  count.take<std::byte>(scratch);
  plan.workspace_bytes = count.used;
  return Status::good();
}

extern const Backend dilated{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
