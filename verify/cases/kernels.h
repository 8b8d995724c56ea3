// The smallest case of every kernel that plans name: for tools that slow a run a hundredfold.
#pragma once
#include <span>
#include <vector>

#include "verify/cases/cases.h"

namespace attune {

struct Backend;
struct Device;

// Of `all`, in their order: for each backend and each kernel of it, by tiles, head dim, dtype, options and split, the
// case with the least work, one of aligned rows if there is any; and likewise for each key source, block lists, append
// and reproducibility. Pure: it plans, and runs nothing.
std::vector<Case> case_of_each_kernel(const std::vector<Case>& all, std::span<const Backend* const>, const Device&);

}  // namespace attune
