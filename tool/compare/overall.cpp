// SPDX-License-Identifier: Apache-2.0
#include "tool/compare/overall.h"

#include <algorithm>
#include <cmath>

#include "tool/timing/fit.h"

namespace attune {
namespace {

double mean(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / double(x.size());
}
double squares(std::span<const double> x) {
  const double middle = mean(x);
  double sum = 0;
  for (const double v : x) sum += (v - middle) * (v - middle);
  return sum;
}

constexpr size_t kTrimmed = 5;  // one in so many, at each end
double trimmed_mean(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t cut = x.size() / kTrimmed;
  return mean(std::span(x).subspan(cut, x.size() - 2 * cut));
}

// One side: how far each of its runs was from the others, over all rows. Runs that some row lacks are left out.
std::vector<double> run_effects(std::span<const RowRuns> rows, std::vector<double> RowRuns::*side) {
  size_t runs = SIZE_MAX;
  for (const RowRuns& row : rows) runs = std::min(runs, (row.*side).size());
  std::vector<double> effects;
  for (size_t n = 0; n < runs; ++n) {
    std::vector<double> apart;
    for (const RowRuns& row : rows) apart.push_back(std::log((row.*side)[n] / median(row.*side)));
    effects.push_back(trimmed_mean(std::move(apart)));
  }
  return effects;
}

// Half of the interval that the runs of both sides share.
double shared_half(std::span<const RowRuns> rows) {
  const std::vector<double> before = run_effects(rows, &RowRuns::before), after = run_effects(rows, &RowRuns::after);
  const int freedom = kRunSpreadFreedom + int(before.size() + after.size()) - 2;
  const double known = kRunSpreadFreedom * kRunSpread * kRunSpread;
  const double variance = (known + squares(before) + squares(after)) / freedom;
  return student_t(freedom) * std::sqrt(variance * (1 / double(before.size()) + 1 / double(after.size())));
}

}  // namespace

Ratio overall_ratio(std::span<const RowRuns> rows) {
  if (rows.empty()) return {};
  std::vector<double> logs;
  for (const RowRuns& row : rows) logs.push_back(std::log(row.ratio.value));
  std::sort(logs.begin(), logs.end());
  const size_t n = logs.size(), cut = n / kTrimmed, kept = n - 2 * cut;
  const double middle = trimmed_mean(logs), shared = shared_half(rows);
  double below = 0, above = 0, confidence = kConfidence;
  if (n > 1) {
    std::fill_n(logs.begin(), cut, logs[cut]);  // winsorized
    std::fill_n(logs.rbegin(), cut, logs[n - 1 - cut]);
    const double deviation = std::sqrt(squares(logs) / double(n - 1));
    below = above = student_t(int(kept) - 1) * deviation * std::sqrt(double(n)) / double(kept);
  } else {
    const Interval& i = rows[0].ratio.interval;
    below = middle - std::log(i.low), above = std::log(i.high) - middle;
    confidence = std::min(confidence, i.confidence);
  }
  return {std::exp(middle),
          {std::exp(middle - std::hypot(below, shared)), std::exp(middle + std::hypot(above, shared)), confidence}};
}

Speed overall_verdict(const Ratio& ratio, double margin, std::optional<double> aa_spread) {
  const Speed claim = verdict(ratio, margin);
  if (claim != Speed::unclear) return claim;
  const bool same = verdict(ratio, margin, std::min(aa_spread.value_or(0), kMostSpread)) == Speed::same;
  return same ? Speed::same : Speed::unclear;
}

}  // namespace attune
