// What was really run, of everything that could be asked: topic x pass x dtype x key source, a number of runs or the
// sentence of a refusal. A cell that is neither is a hole: a backend says it serves something no case has tried.
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
  std::string refusal{};  // of the plainest problem of the cell, where nothing ran

  bool empty() const { return runs == 0 && refusal.empty(); }
};

// Of one backend on one place, every cell in a fixed order: topics, then passes, dtypes and key sources.
std::vector<Cell> coverage(const Suite&, const std::vector<Attempt>&, const Backend&, size_t place_index);

}  // namespace attune
