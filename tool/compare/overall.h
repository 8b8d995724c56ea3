// SPDX-License-Identifier: Apache-2.0
// All rows of a comparison taken together: the trimmed geometric mean of their ratios. It sees what no single row
// shows, such as a suite that became 3 % slower while every row is within its own noise.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "tool/timing/statistics.h"

namespace attune {

// One row: the median of each run on each side, and their ratio.
struct RowRuns {
  std::vector<double> before{}, after{};
  Ratio ratio{};
};

// How far all rows of a run together are from those of another run of the same program: the standard deviation that 24
// processes showed (tests/tool/compare/noise.h). It counts as eight degrees of freedom beside the runs of the records,
// so one run per side is not taken for exact, and many runs speak for themselves.
inline constexpr double kRunSpread = 0.003;
inline constexpr int kRunSpreadFreedom = 8;

// Before divided by after. A fifth of the rows at each end is trimmed: where half of the few samples of a row met an
// interrupt, its ratio is off by a factor, and would hide all others. The interval combines two uncertainties by their
// squares: that between the rows (Yuen's, Student's t over winsorized logarithms; of a single row its own interval) and
// that which all rows of a run share.
Ratio overall_ratio(std::span<const RowRuns>);

// FASTER and SLOWER: the interval lies beyond the margin. No A/A spread excuses a difference here, because the spread
// of single rows averages out. SAME: the interval lies within the margin, or within the spread, of at most kMostSpread.
Speed overall_verdict(const Ratio&, double margin, std::optional<double> aa_spread);

}  // namespace attune
