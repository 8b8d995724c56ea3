// The parts of a composed variant: planned freely, regardless of a backend selected by name. If no backend accepts a
// part, the refusal names it; `attune plan` of that line explains why.
#pragma once
#include "plan/backend.h"

namespace attune {

// Adds the plan of a part, made by this planner.
inline Status add_part(std::string_view who, const Problem& part, const Planner& planner, Plan& whole) {
  if (planner.plan(part, whole.sub_plans.emplace_back()).ok()) return Status::good();
  return Status::no(who, ": no backend takes its part '", name(part), "'");
}

// Adds the plan of a part, ignoring a backend selected by name.
inline Status plan_part(std::string_view who, const Problem& part, const Planner& planner, Plan& whole) {
  return add_part(who, part, {.device = planner.device, .rules = planner.rules}, whole);
}

// Turns the error of a step or part into one of the whole: a step has no problem, and a part only its own.
inline Status of_whole(const Plan& plan, Status s) {
  if (s.ok() || s.message.starts_with(join(plan.backend->name, ": "))) return s;
  return Status::no(plan.backend->name, ": ", s.message, ", in: ", name(plan.problem));
}

}  // namespace attune
