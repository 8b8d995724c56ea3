// Ranges for NVIDIA's profilers: what is started on a GPU while a Range lives is shown under the line of its problem,
// in the domain "attune". Without a tool attached it costs a branch, and no text is made.
#pragma once
#include "core/problem.h"

namespace attune::cuda {

class Range {
 public:
  // Null: no range. The problem's line is made here, and only if somebody looks.
  explicit Range(const Problem*);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool open_ = false;
};

}  // namespace attune::cuda
