// Problems from axes: every combination of the values given for each. "512-8192*2" is a range that doubles,
// "512-2048+512" one that steps, and commas join values and ranges.
#pragma once
#include <string>
#include <vector>

#include "core/problem.h"

namespace attune {

struct Axes {  // as they are on the command line
  std::string pass = "forward", dtype = "f32", batch = "1", heads = "8", len = "512-2048*2", len_q = "", dim = "64",
              mask = "full", options = "";
};

// "512,1024-4096*2" -> 512, 1024, 2048, 4096. `what` begins the sentence of a mistake.
Status numbers_of(std::string_view what, std::string_view text, std::vector<int32_t>& out);
// Splits at commas, except the one inside a window: "full,window1023,0" are two masks.
std::vector<std::string> masks_of(std::string_view text);
// The last axis of the list above changes fastest, so that lengths lie next to each other.
Status problems_of(const Axes&, std::vector<Problem>& out);

// The lines of a file; empty ones and those that begin with # are skipped, a mistake names file and line.
Status problems_in(const std::string& path, std::vector<Problem>& out);

}  // namespace attune
