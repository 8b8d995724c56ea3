// SPDX-License-Identifier: Apache-2.0
// The sub-plans of a composed variant: planned freely, regardless of a backend selected by name. If no backend supports
// a part, the refusal names it; `attune plan` of that line explains why.
#pragma once
#include "plan/backend.h"

namespace attune {

// Adds the plan of a part, made by this planner.
inline Status add_part(std::string_view who, const Problem& part, const Planner& planner, Plan& whole) {
  const Status s = planner.plan(part, whole.sub_plans.emplace_back());
  return s.ok() ? s : Status::failure(s.code, who, ": no backend supports its part '", name(part), "'");
}

// Adds the plan of a part, ignoring a backend selected by name.
inline Status plan_part(std::string_view who, const Problem& part, const Planner& planner, Plan& whole) {
  return add_part(who, part, {.device = planner.device, .rules = planner.rules}, whole);
}

// Turns the error of a step or part, which names neither the composition nor its problem, into one of the whole.
inline Status of_whole(const Plan& plan, Status s) {
  if (s.ok()) return s;
  return Status::failure(s.code, plan.backend->name, ": ", s.message, ", in: ", name(plan.problem));
}

// The refusal of a composition whose variant a problem does not have.
inline Status not_variant(std::string_view who, std::string_view variant, const Problem& p) {
  const std::string_view w = word(p.variant);
  return Status::unsupported(who, ": implements the variant ", variant, "; the problem has ", w.empty() ? "none" : w);
}

}  // namespace attune
