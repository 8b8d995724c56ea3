// SPDX-License-Identifier: Apache-2.0
// Estimates made before anything is measured: how long a row takes, and whether its tensors fit.
#pragma once
#include <cmath>
#include <optional>

#include "tool/bench/row.h"

namespace attune {

double call_seconds(const Problem&, const Bench&);                     // one call of a modest kernel
double call_seconds(const BenchRow&, const Bench&);                    // of a module too
double estimated_seconds(const Problem&, const Bench&, size_t peers);  // a row with this many peers

// True if one call is estimated to take longer than the suite allows; the row is then skipped.
bool is_too_slow(const BenchRow&, const Bench&);

double available_memory();  // bytes; infinite if the system does not report it
// True if the tensors of a row fit. All are made on the host: a CPU row holds two copies meanwhile, a GPU row one copy
// on the host and one on the GPU.
inline bool fits(double bytes, double host, std::optional<double> gpu = {}) {
  return (gpu ? 1.1 : 2.2) * bytes <= host && (!gpu || bytes <= *gpu);
}

}  // namespace attune
