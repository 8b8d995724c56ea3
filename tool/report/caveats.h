// Where the numbers of a report come from, and what limits them: both read off the records, nothing is written by hand.
#pragma once
#include "tool/report/model.h"

namespace attune {

Table provenance_of(const std::vector<Record>&);  // one row for each different origin
std::vector<std::string> caveats_of(const std::vector<Record>&);

}  // namespace attune
