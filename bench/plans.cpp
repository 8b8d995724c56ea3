// SPDX-License-Identifier: Apache-2.0
// Prints the plan of every case of verify/ for machines that need not be here, a line each. Two builds whose output is
// equal choose alike: diff <(old/plans) <(new/plans).
#include <cstdio>

#include "plan/plan.h"
#include "verify/cases/cases.h"

namespace {

void print(const attune::Plan& plan, int depth) {
  const std::string choice = plan.backend->describe ? plan.backend->describe(plan) : "";
  std::printf("%*s%s tile %dx%d splits %d kernel %d workspace %zu %s %s\n", 2 * depth, "", plan.backend->name.data(),
              plan.tile_q, plan.tile_k, plan.splits, plan.kernel, plan.workspace_bytes, plan.refused.c_str(),
              choice.c_str());
  for (const attune::Plan& part : plan.sub_plans) print(part, depth + 1);
}

}  // namespace

int main() {
  for (const char* word : {"cpu", "a100", "h200"}) {
    attune::Device device;
    if (!attune::known_device(word, device).ok()) device = {.units = 8, .name = "a CPU"};
    for (const attune::Case& c : attune::cases()) {
      attune::Plan plan;
      const attune::Status s = attune::Planner{.device = device}.plan(c.problem, plan);
      std::printf("%s | %s | %s\n", word, name(c.problem).c_str(), s.message.c_str());
      if (s.ok()) print(plan, 1);
    }
  }
}
