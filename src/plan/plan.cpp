// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <algorithm>
#include <mutex>

#include "core/problem_line.h"
#include "core/variant/variants.h"
#include "plan/rules.h"

namespace attune {

#define BACKEND(name) extern const Backend name;
#include "plan/backends.def"
#undef BACKEND

std::span<const Backend* const> backends() {
#define BACKEND(name) &name,
  static const Backend* const all[] = {
#include "plan/backends.def"
  };
#undef BACKEND
  return all;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* b : backends())
    if (b->name == name) return b;
  return nullptr;
}

std::string backend_names() {
  std::string all;
  for (const Backend* b : backends()) all += join(all.empty() ? "" : ", ", b->name);
  return all;
}

namespace {

// Explains missing GPU backends: those that were not built cannot refuse with a reason.
std::string_view absent_for(const Device& d) {
#ifdef ATTUNE_CUDA
  constexpr bool kBuilt = true;
#else
  constexpr bool kBuilt = false;
#endif
  if (kBuilt || d.kind != DeviceKind::cuda) return "";
  return "\n  this build of attune has no GPU code: it was left out, or nvcc was not there";
}

// Whether a backend serves problems of this pass and variant on this device at all: it supports a simple one. If not,
// its refusal says nothing about the problem and is not worth a line.
bool serves_kind(const Backend& b, const Problem& p, const Device& d) {
  Problem simple = p;
  simple.options = 0, simple.mask.align = Align::bottom_right, simple.mask.k_step = 1, simple.mask.k_phase = 0;
  simple.keys = KeySource::linear, simple.page = 0, simple.reproducible = {}, simple.precision = {};
  simple.dim_qk = simple.dim_v = 64;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    simple.dtype = {t, t, t, p.pass == Pass::backward ? t : DType::none, DType::none};
    if (!valid(simple).ok() || b.supports(simple, d).ok()) return true;
  }
  return false;
}

// The plan of one backend, if it supports the problem and finds a shape for it.
Status plan_by(const Backend& b, const Problem& p, const Planner& planner, Plan& out) {
  out = {.backend = &b, .problem = p, .device = planner.device};
  Status s = b.supports(p, planner.device);
  return s.ok() ? b.shape(out, planner) : s;
}

}  // namespace

Status Planner::plan(const Problem& p, Plan& out) const {
  if (Status s = valid(p); !s.ok()) return s;  // so every plan, and every problem in a cache, is valid
  constexpr std::string_view kListed = "first in the list of backends that supports it";
  std::string refused, other;  // other: by backends of another pass, variant or device
  const auto accept = [&](const Backend* b, std::string_view why) {
    if (std::find(unfit.begin(), unfit.end(), b) != unfit.end()) return false;
    Plan plan;
    if (Status s = plan_by(*b, p, *this, plan); !s.ok())
      return (why != kListed || serves_kind(*b, p, device) ? refused : other) += "\n  " + s.message, false;
    plan.why = why, plan.refused = std::move(refused);
    out = std::move(plan);
    return true;
  };

  if (!forced.empty()) {
    const Backend* b = find_backend(forced);
    if (!b) return Status::no("backend '", forced, "' is not one of ", backend_names(), absent_for(device));
    if (accept(b, "selected by name")) return Status::good();
    return Status::unsupported("backend '", forced, "' does not support: ", name(p), refused);
  }
  if (const Rule* rule = match(p, rules)) {
    const Backend* b = find_backend(rule->backend);
    if (b && accept(b, rule->source)) return Status::good();
    if (!b) refused += join("\n  ", rule->source, ": backend '", rule->backend, "' is not one of ", backend_names());
  }
  for (const Backend* b : backends())
    if (!b->only_by_name && accept(b, kListed)) return Status::good();
  const std::string_view variant = word(p.variant), absent = absent_for(device);
  if (!variant.empty() && !find_variant(variant)) refused = join("\n  ", unknown_variant(variant));
  if (refused.empty() && absent.empty()) refused = std::move(other);
  return Status::unsupported("no backend supports: ", name(p), refused, absent);
}

Status PlanCache::find(const Problem& p, Kept& out) {
  {
    const std::shared_lock reading(mutex_);
    if (const auto it = plans_.find(p); it != plans_.end()) {
      out = it->second;
      if (!out->used.load(std::memory_order_relaxed)) out->used.store(true, std::memory_order_relaxed);
      return Status::good();
    }
  }
  auto made = std::make_shared<CachedPlan>();
  if (Status s = planner_.plan(p, *made); !s.ok()) return s;
  const std::unique_lock writing(mutex_);
  if (plans_.size() >= most_) drop_half();
  // Another thread may have been first; keep its plan.
  out = plans_.try_emplace(p, std::move(made)).first->second;
  return Status::good();
}

// Half, so that the walk over all of them is rare.
void PlanCache::drop_half() {
  std::erase_if(plans_, [](const auto& one) { return !one.second->used.exchange(false); });
  for (auto it = plans_.begin(); it != plans_.end() && plans_.size() > most_ / 2;) it = plans_.erase(it);
}

size_t PlanCache::size() const {
  const std::shared_lock reading(mutex_);
  return plans_.size();
}

// Messages come from the first call that took this link: each plan is made once.
Status PlanCache::next(const CachedPlan& from, const Status& refusal, std::span<const Backend* const> unfit,
                       Kept& out) {
  {
    const std::shared_lock reading(mutex_);
    if (from.next) return out = from.next, Status::good();
  }
  Planner planner = planner_;
  planner.unfit = unfit;
  auto made = std::make_shared<CachedPlan>();
  if (Status s = planner.plan(from.problem, *made); !s.ok())
    return Status::failure(s.code, s.message, "\n  ", refusal.message);
  made->instead_of = from.backend;
  made->why = join("next in the list that supports it, because the arguments do not fit ", from.backend->name);
  made->refused += "\n  " + refusal.message;
  const std::unique_lock writing(mutex_);
  if (!from.next) from.next = std::move(made);
  return out = from.next, Status::good();
}

Status PlanCache::fit(const Args& args, Kept& plan) {
  if (!plan->backend->fits) return Status::good();
  std::vector<const Backend*> unfit;
  std::string refusals;
  while (plan->backend->fits) {
    Status s = plan->backend->fits(*plan, args);
    if (s.ok()) return s;
    if (!planner_.forced.empty()) return Status::failure(s.code, s.message, ", in: ", name(plan->problem));
    unfit.push_back(plan->backend);
    if (!refusals.empty()) s.message = refusals + "\n  " + s.message;
    refusals = s.message;
    Kept link;
    if (Status none = next(*plan, s, unfit, link); !none.ok()) return none;
    plan = std::move(link);
  }
  return Status::good();
}

std::string links_after(const Plan& plan, const Planner& planner) {
  std::string names;
  if (!planner.forced.empty() || !plan.backend->fits) return names;
  for (const Backend* b : backends()) {
    Plan next;
    if (b == plan.backend || b->only_by_name || !plan_by(*b, plan.problem, planner, next).ok()) continue;
    names += join(names.empty() ? "" : ", ", b->name);
    if (!b->fits) break;
  }
  return names;
}

}  // namespace attune
