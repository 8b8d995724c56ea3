// Problems from axes: every combination of the values given for each. "512-8192*2" is a range that doubles,
// "512-2048+512" one that steps, and commas join values and ranges.
#pragma once
#include <string>
#include <vector>

#include "core/problem.h"

namespace attune {

// What one row of a measurement is about. Lists of blocks are those of a pattern, or drawn where none is said.
struct BenchRow {
  Problem problem{};
  std::string pattern{};  // "random density=0.1 seed=7"; "" for none
  std::string label{};      // of what is no problem: of a module its pass and line
  std::string not_built{};  // of what a suite has and this tool cannot measure yet: why not
  std::string module{};     // its line; `problem` is then its attention
  double most_call_s = 0;   // of a suite: a row of which one call takes longer is not tried; 0: whatever it takes
};
std::string name(const BenchRow&);  // its line and pattern, or its label
// "forward bf16 b1 h8 q4096 k4096 d64 causal blocks64x64x1 | random density=0.1": the bound is then the pattern's.
Status parse_row(std::string_view text, BenchRow& out);
// Sets the bound to the most entries that the pattern has; of ranks, over the whole, whose lists every one of them has.
Status bound_by(std::string_view pattern, Problem&);

struct Axes {  // as they are on the command line
  std::string pass = "forward", dtype = "f32", batch = "1", heads = "8", len = "512-2048*2", len_q = "", dim = "64",
              mask = "full", options = "";
};

// "512,1024-4096*2" -> 512, 1024, 2048, 4096. `what` begins the sentence of a mistake.
Status numbers_of(std::string_view what, std::string_view text, std::vector<int32_t>& out);
// Splits at commas, except the one inside a window: "full,window1023,0" are two masks.
std::vector<std::string> masks_of(std::string_view text);
// The last axis of the list above changes fastest, so that lengths lie next to each other.
Status problems_of(const Axes&, std::vector<BenchRow>& out);

// Of rows that were not made from axes: pass and len, where given ("--pass"), say which of them stay; the other axes
// have no meaning there, and neither has a choice that leaves nothing.
Status keep_rows(const Axes&, const std::vector<std::string>& given, std::vector<BenchRow>& rows);

// The lines of a file; empty ones and those that begin with # are skipped, a mistake names file and line.
Status problems_in(const std::string& path, std::vector<BenchRow>& out);

}  // namespace attune
