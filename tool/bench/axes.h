// SPDX-License-Identifier: Apache-2.0
// Rows of a benchmark, made from axes, problem lines or a file. Axes combine in every way. "512-8192*2" is a range
// that doubles, "512-2048+512" a range with a step; commas join values and ranges.
#pragma once
#include <string>
#include <vector>

#include "core/device.h"
#include "core/problem.h"

namespace attune {

// The subject matter of one row. Block lists come from `pattern`, or are drawn at random if it is empty.
struct BenchRow {
  Problem problem{};
  std::string pattern{};    // "random density=0.1 seed=7"; "" for none
  std::string label{};      // name of a row that is not a problem; for a module, its pass and line
  bool train = false;       // a forward and its backward together; `problem` is then the backward
  std::string module{};     // module line; `problem` is then the attention inside
  double most_call_s = 0;   // skip the row if one call is estimated to take longer; 0: no limit
};
std::string name(const BenchRow&);  // problem line and pattern, or the label
// "forward bf16 b1 h8 q4096 k4096 d64 causal blocks64x64x1 | random density=0.1": the pattern sets the bound.
Status parse_row(std::string_view text, BenchRow& out);
// parse_row(), or "train ..." for both passes as one row.
Status parse_bench_row(std::string_view text, BenchRow& out);
// "train f32 ..." as its backward, which has the tensors of both; false for another line.
bool train_problem(std::string_view line, Problem& out);
// Sets the bound to the most entries the pattern can have. Over ranks, every rank holds the lists of the whole problem.
Status bound_by(std::string_view pattern, Problem&);

struct Axes {  // as given on the command line
  std::string pass = "forward", dtype = "f32", batch = "1", heads = "8", len = "512-2048*2", len_q = "", dim = "64",
              mask = "full", options = "";
};

// "512,1024-4096*2" -> 512, 1024, 2048, 4096. `what` is the option that an error message names.
Status numbers_of(std::string_view what, std::string_view text, std::vector<int32_t>& out);
// Splits at commas, except the comma inside a window: "full,window1023,0" is two masks.
// Each number of threads to measure, once; without any asked for, all units of the device, which of a GPU are its
// multiprocessors and may be more than this process has `cpus`.
Status thread_counts(std::string_view asked, const Device&, int32_t cpus, std::vector<int32_t>& out);
std::vector<std::string> masks_of(std::string_view text);
// The length changes fastest, so the rows of a sweep over lengths are adjacent.
Status problems_of(const Axes&, std::vector<BenchRow>& out);

// Filters rows that were not made from axes. `given` lists the axes on the command line: "--pass", "--len" and "--mask"
// select rows. Any other axis is an error, and so is a selection that leaves no row.
Status keep_rows(const Axes&, const std::vector<std::string>& given, std::vector<BenchRow>& rows);

// Reads problem lines from a file. Empty lines and lines that begin with # are skipped; errors name file and line.
Status problems_in(const std::string& path, std::vector<BenchRow>& out);

}  // namespace attune
