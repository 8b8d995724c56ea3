// SPDX-License-Identifier: Apache-2.0
// The samples behind every median: strips for the eye, and a table with quantiles.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

// Limits of a row, of a figure and of the page: a page of 500 rows stays small.
constexpr size_t kMostStrokes = 48, kMostStrips = 24, kMostRows = 160;

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, size_t(share * double(sorted.size() - 1) + 0.5))];
}

// At most so many of the sorted values, evenly taken, with both ends.
std::vector<double> thinned(const std::vector<double>& sorted, double over) {
  std::vector<double> chosen;
  const size_t count = std::min(sorted.size(), kMostStrokes);
  for (size_t n = 0; n < count; ++n)
    chosen.push_back(sorted[count > 1 ? n * (sorted.size() - 1) / (count - 1) : 0] / over);
  return chosen;
}

// The samples of rows with several, sorted; of more than kMostRows rows, those whose samples differ most.
using SortedSamples = std::map<const Record*, std::vector<double>>;
SortedSamples samples_of(const Measurements& rows, size_t& left_out) {
  SortedSamples all;
  std::vector<double> spreads;
  const auto spread = [](const std::vector<double>& sorted) { return quantile(sorted, 0.95) / quantile(sorted, 0.05); };
  for (const Measurement& row : rows.all) {
    if (!row.ok() || row.record->samples_ns.size() < 2) continue;
    std::vector<double> sorted = row.record->samples_ns;
    std::sort(sorted.begin(), sorted.end());
    if (!(sorted.front() > 0) || !std::isfinite(sorted.back())) continue;
    spreads.push_back(spread(sorted));
    all.emplace(row.record, std::move(sorted));
  }
  const size_t measured = all.size();
  if (measured > kMostRows) {
    std::nth_element(spreads.begin(), spreads.begin() + kMostRows, spreads.end(), std::greater<>());
    std::erase_if(all, [&](const auto& one) { return spread(one.second) <= spreads[kMostRows]; });
  }
  left_out = measured - all.size();
  return all;
}

}  // namespace

Section samples_section(const Measurements& rows) {
  Section section{.id = "samples", .title = "Samples"};
  size_t alike = 0;
  const SortedSamples samples = samples_of(rows, alike);
  size_t left_out = 0;
  for (const auto& [family, all] : families_of(rows)) {
    Strips strips{.title = "Samples: " + family, .rows = {}};
    Table table{.caption = family,
                .head = {"problem", "subject", "samples", "fastest", "5 %", "median", "95 %", "slowest"},
                .rows = {}, .facets = {1}};
    for (const Measurement& row : all) {
      const auto found = samples.find(row.record);
      if (found == samples.end()) continue;
      const std::vector<double>& sorted = found->second;
      const auto time = [](double ns) { return number_cell(ns, nanoseconds_text(ns)); };
      table.rows.push_back({{line_text(*row.record)}, {row.series},
                            number_cell(double(sorted.size()), fmt::format("{}", sorted.size())),
                            time(sorted.front()), time(quantile(sorted, 0.05)), time(row.record->median_ns),
                            time(quantile(sorted, 0.95)), time(sorted.back())});
      if (strips.rows.size() == kMostStrips) {
        ++left_out;
        continue;
      }
      const std::string name = row.length ? length_text(row.length) + " " + row.series : row.series;
      const auto look = rows.looks.find(row.series);
      strips.rows.push_back({name, look == rows.looks.end() ? 0 : look->second,
                             fmt::format("{}\n{} samples, {} ... {}, median {}", name, sorted.size(),
                                         nanoseconds_text(sorted.front()), nanoseconds_text(sorted.back()),
                                         nanoseconds_text(row.record->median_ns)),
                             thinned(sorted, row.record->median_ns)});
    }
    if (table.rows.empty()) continue;
    Figure figure{.title = family, .plots = {}, .table = std::move(table)};
    figure.plots.push_back({"", std::move(strips)});
    section.figures.push_back(std::move(figure));
  }
  if (section.figures.empty() && !alike) return section;
  section.notes.push_back("Every stroke is a sample over the median of its row, the dot is the median; slower samples "
                          "beyond the axis stand at its end. Two clusters are two speeds of one row: a clock, a "
                          "neighbour or memory.");
  if (alike)
    section.notes.push_back(fmt::format("{} whose samples differ less are left out of this section.",
                                        counted(alike, "row")));
  if (left_out)
    section.notes.push_back(fmt::format("{} are only in the tables: a figure shows {}.", counted(left_out, "row"),
                                        kMostStrips));
  return section;
}

}  // namespace attune
