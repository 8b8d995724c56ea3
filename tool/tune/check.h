// How good the choices of rules are, at rows that they were not made from.
#pragma once
#include "tool/tune/curves.h"

namespace attune {

struct CheckedChoice {
  std::string problem{}, timing{}, chosen{}, fastest{};
  double slower = 0;  // time of the chosen by that of the fastest, minus 1
  double spread = 0;  // A/A of the row
  bool by_rule = false;
  // A machine that differs from itself by more than a twentieth does not say what is as fast.
  bool right() const { return slower <= (spread < kMostSpread ? spread : kMostSpread); }
};

// The device that has this name: this CPU, a GPU that is here, or one that is known by its last word. False: none is.
bool device_called(const std::string& name, Device& out);

// Of every row that has two backends or more. The choice is that of the planner, which may refuse what a rule names
// where it was timed by name: of a device that nobody knows, the backend that the rules name, or where they say nothing
// or it was not measured, the first in the order of the backends that was.
std::vector<CheckedChoice> check_choices(const std::vector<Record>&, const std::vector<Rule>&,
                                         const std::string& device, const GatherSettings&);

}  // namespace attune
