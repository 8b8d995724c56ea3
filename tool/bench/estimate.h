// Guesses before anything is measured: how long a row takes, and whether its tensors fit.
#pragma once
#include <cmath>
#include <optional>

#include "tool/bench/row.h"

namespace attune {

double call_seconds(const Problem&, const Bench&);  // of one call of a modest kernel
double estimated_seconds(const Problem&, const Bench&, size_t peers);  // of a row with so many peers

// Whether one call takes longer than a suite waits for one: the row is not tried then.
bool is_too_slow(const BenchRow&, const Bench&);

double available_memory();  // bytes; infinite where the system does not say
// Whether the tensors of a row fit. They are made on the host: of a CPU there are two of each meanwhile, and a GPU's
// are one set there and one on the GPU.
inline bool fits(double bytes, double host, std::optional<double> gpu = {}) {
  return (gpu ? 1.1 : 2.2) * bytes <= host && (!gpu || bytes <= *gpu);
}

}  // namespace attune
