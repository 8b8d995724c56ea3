// SPDX-License-Identifier: Apache-2.0
// Checks how good the choices of rules are on measured rows.
#pragma once
#include "tool/tune/curves.h"

namespace attune {

struct CheckedChoice {
  std::string problem{}, timing{}, chosen{}, fastest{};
  double slower = 0;  // time of the chosen backend / time of the fastest - 1
  double spread = 0;  // A/A spread of the row
  bool by_rule = false;
  // An A/A spread above kMostSpread does not excuse a slower choice.
  bool right() const { return slower <= (spread < kMostSpread ? spread : kMostSpread); }
};

// Finds the device of this name: this CPU, a GPU of this machine, or one known by the last word of its name.
bool device_called(const std::string& name, Device& out);

// Checks every row with at least two backends. The choice is that of the planner, which may refuse a backend that a
// rule names. For an unknown device it is the backend that the rules name. If there is none, or it was not measured, it
// is the first measured backend of the list.
std::vector<CheckedChoice> check_choices(const std::vector<Record>&, const std::vector<Rule>&,
                                         const std::string& device, const GatherSettings&);

}  // namespace attune
