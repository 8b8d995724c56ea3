// SPDX-License-Identifier: Apache-2.0
// Plots time against length in a terminal: one plot for every kind of row measured at several lengths.
#pragma once
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

// Both axes are logarithmic. Each subject is a letter, explained below the plot. "" if no kind of row has two lengths.
std::string plot(const std::vector<Record>&, int columns = 64, int lines = 16);

}  // namespace attune
