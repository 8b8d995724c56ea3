// SPDX-License-Identifier: Apache-2.0
// Ranges for NVIDIA's profilers: work launched on a GPU during the lifetime of a Range is shown under its problem line,
// in the domain "attune". Without a tool attached it costs a branch and builds no text.
#pragma once
#include "core/problem.h"

namespace attune::cuda {

class Range {
 public:
  // Null: no range. The problem line is built here, and only if a tool is attached.
  explicit Range(const Problem*);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool open_ = false;
};

}  // namespace attune::cuda
