// How much memory a piece of work takes, as the system counts it: of this process its resident pages at their highest,
// of a GPU what is no longer free. Nothing here is reckoned from shapes, so a plan's workspace can be held against it.
#pragma once

namespace attune {

class PeakMemory {
 public:
  explicit PeakMemory(int gpu = -1);  // from here on; -1: this process
  // More than at the start, at the highest (of a GPU: now); below 0: the system does not say.
  double bytes() const;

 private:
  int gpu_;
  double start_ = -1;
};

}  // namespace attune
