// How good the choices of rules are, at rows that they were not made from.
#pragma once
#include "tool/tune/curves.h"

namespace attune {

struct CheckedChoice {
  std::string problem{}, timing{}, chosen{}, fastest{};
  double slower = 0;  // time of the chosen by that of the fastest, minus 1
  double spread = 0;  // A/A of the row
  bool by_rule = false;
  bool right() const { return slower <= spread; }
};

// Of every row that has two backends or more. The choice is that of the planner: the backend the rules name, or where
// they say nothing or it cannot run, the first in the order of the backends that can.
std::vector<CheckedChoice> check_choices(const std::vector<Record>&, const std::vector<Rule>&,
                                         const std::string& device, const GatherSettings&);

}  // namespace attune
