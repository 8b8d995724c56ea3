// The parts of a composed variant: planned freely, whatever backend was asked for by name. Where nobody takes one, the
// refusal names it in a sentence; `attune plan` of that line says why.
#pragma once
#include "plan/backend.h"

namespace attune {

// Adds the plan of a part, as this planner makes it.
inline Status add_part(std::string_view who, const Problem& part, const Planner& planner, Plan& whole) {
  if (planner.plan(part, whole.parts.emplace_back()).ok()) return Status::good();
  return Status::no(who, ": no backend takes its part '", name(part), "'");
}

// Adds the plan of a part, whatever backend was asked for by name.
inline Status plan_part(std::string_view who, const Problem& part, const Planner& planner, Plan& whole) {
  return add_part(who, part, {.device = planner.device, .rules = planner.rules}, whole);
}

// What a step or a part of a run said, as a sentence of the whole: a step knows no problem, a part only its own.
inline Status of_whole(const Plan& plan, Status s) {
  if (s.ok() || s.message.starts_with(join(plan.backend->name, ": "))) return s;
  return Status::no(plan.backend->name, ": ", s.message, ", in: ", name(plan.problem));
}

}  // namespace attune
