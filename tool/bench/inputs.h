// SPDX-License-Identifier: Apache-2.0
// The inputs of a row, which no subject may change: a peer that works in place would be timed on other values than it
// was checked on. Of a large tensor only both ends are looked at.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tool/subjects/gpu_workload.h"
#include "tool/subjects/workload.h"

namespace attune {

class Inputs {
 public:
  // `fresh` makes the same workload again. A training row writes out and lse in every call.
  Inputs(Workload&, GpuWorkload*, bool train, std::function<std::unique_ptr<Workload>()> fresh);
  // The first input that is not as it was, "q"; "" if all are.
  std::string changed() const;
  Status restore();

 private:
  Workload& work_;
  GpuWorkload* const gpu_;  // null on a CPU
  std::function<std::unique_ptr<Workload>()> fresh_;
  std::vector<std::pair<Role, uint64_t>> were_{};
  uint64_t hash(Role) const;
};

// Root mean square of up to a few thousand elements, spread over the whole tensor.
double input_rms(const Tensor&);

}  // namespace attune
