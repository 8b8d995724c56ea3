// SPDX-License-Identifier: Apache-2.0
// The times of one row over its runs, the step from each run to the next, and the runs from which on they changed for
// good. A step compares the samples of two runs; a change point compares levels of several runs, whose noise is larger
// than that of the samples of one.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

struct RunStep {
  Ratio ratio{};                       // time before / time after: above 1 is faster
  Speed speed = Speed::same;
  std::vector<std::string> machine{};  // how the machine differs
};
RunStep run_step(const Record& before, const Record& after);

// Where a series of medians changes its level: two levels, or a stretch of another level, then the same within each
// part (binary and circular segmentation). A change is claimed if at most kMostChance of the orders of the same values
// show one as large, and if the medians of the two sides differ by more than `margin`. A level has at least two runs,
// so a single slow night is none.
inline constexpr double kMostChance = 0.01;
struct Split {
  size_t at = 0;      // index of the first value of the new level
  double chance = 0;  // share of orders with a change as large; of 2,000 drawn with a fixed seed
};
std::vector<Split> splits(std::span<const double> values, double margin);

struct ChangePoint {
  size_t at = 0;                       // index of the first point of the new level
  double ratio = 1;                    // level before / level after: above 1 is faster
  double before_ns = 0, after_ns = 0;  // medians of the two levels
  double chance = 0;
  std::vector<std::string> machine{};  // how the machine differs between the last run before and the first after
  bool is_slower() const { return ratio < 1; }
};
struct Trend {
  std::vector<const Record*> points{};  // by time
  std::vector<ChangePoint> changes{};   // by index
};
// The trends of all records that have a time, in order of first appearance.
std::vector<Trend> trends_of(const std::vector<Record>&);

// Everything that distinguishes trends, as in trend_key(): line, subject, machine, card, setting.
std::string heading(const Record&);
// "SLOWER from 0123abc (2026-01-31T12:00:00Z) on: 1.50 ms -> 1.80 ms, 0.83x, chance 0.1 %"
std::string sentence(const Trend&, const ChangePoint&);

}  // namespace attune
