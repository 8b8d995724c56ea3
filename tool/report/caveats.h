// SPDX-License-Identifier: Apache-2.0
// Where the numbers of a report come from, and what limits them. Both are derived from the records.
#pragma once
#include "tool/report/model.h"

namespace attune {

Table provenance_of(const std::vector<Record>&);  // one row per distinct origin
std::vector<std::string> caveats_of(const std::vector<Record>&);

}  // namespace attune
