// SPDX-License-Identifier: Apache-2.0
// What actually ran, out of everything that can be requested: topic x pass x dtype x key source, with the number of
// runs or a refusal. A cell with neither is a hole: a backend claims support that no case has tested.
#pragma once
#include <string>
#include <vector>

#include "verify/suite.h"

namespace attune {

struct Cell {
  std::string_view topic{};
  Pass pass = Pass::forward;
  DType dtype = DType::f32;
  KeySource keys = KeySource::linear;
  int runs = 0;
  std::string refusal{};  // for the plainest problem of the cell, if nothing ran

  bool empty() const { return runs == 0 && refusal.empty(); }
};

// Every cell of one backend on one place, in a fixed order: topics, then passes, dtypes and key sources.
std::vector<Cell> coverage(const Suite&, const std::vector<Attempt>&, const Backend&, size_t place_index);

}  // namespace attune
