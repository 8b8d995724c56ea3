// SPDX-License-Identifier: Apache-2.0
// Measures how much memory a piece of work takes, as the system counts it: the peak of the resident pages of this
// process, or the memory of a GPU that is no longer free. Nothing is derived from shapes, so a plan's workspace can be
// checked against it.
#pragma once

namespace attune {

class PeakMemory {
 public:
  explicit PeakMemory(int gpu = -1);  // starts measuring; -1: this process
  // Increase since the start: the peak for a process, the present value for a GPU; below 0: unknown.
  double bytes() const;

 private:
  int gpu_;
  double start_ = -1;
};

}  // namespace attune
