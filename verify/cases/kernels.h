// SPDX-License-Identifier: Apache-2.0
// The smallest case of every kernel that plans name: for tools that slow a run down a hundredfold.
#pragma once
#include <span>
#include <vector>

#include "verify/cases/cases.h"

namespace attune {

struct Backend;
struct Device;

// Selects from `all`, in order, the case with the least work for each kernel of each backend: by tiles, head dim,
// dtype, options and split, with aligned rows if possible. Does the same for each key source, block lists, append and
// reproducibility. Pure: it plans and runs nothing.
std::vector<Case> case_of_each_kernel(const std::vector<Case>& all, std::span<const Backend* const>, const Device&);

}  // namespace attune
