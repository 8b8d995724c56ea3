// Time against length in a terminal: one picture for every kind of row that was measured at several lengths.
#pragma once
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

// Both axes logarithmic; a letter for each subject, its name below. "" where no kind of row has two lengths.
std::string plot(const std::vector<Record>&, int columns = 64, int lines = 16);

}  // namespace attune
