// SPDX-License-Identifier: Apache-2.0
// Subjects against their baselines: a heat map of speed-ups by family and length, with lines at tuned thresholds.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/report/rows.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

std::string symbol(const std::string& verdict) {
  return verdict == "FASTER" ? " \u25B2" : verdict == "SLOWER" ? " \u25BC" : verdict == "SAME" ? " =" : " ?";
}

std::string ratio_text(const Ratio& r) {
  return fmt::format("{} [{}, {}]{}", factor_text(r.value), digits_text(r.interval.low), digits_text(r.interval.high),
                     confidence_text(r.interval));
}

// The smallest length from which a rule selects the subject for this problem; 0 if no rule does.
int threshold(Problem p, const std::string& subject, const std::vector<Rule>& rules, std::string& source) {
  int least = 0;
  for (const Rule& rule : rules) {
    const int64_t keys = least_keys(rule, int64_t(p.batch) * p.heads_q);
    if (rule.backend != subject || keys > INT32_MAX || (least && keys >= least)) continue;
    p.len_k = std::max(int(keys), 1);
    if (match(p, rules) == &rule) least = p.len_k, source = rule.source;
  }
  return least;
}

HeatMap map_of(const std::vector<Measurement>& compared, const std::string& title, const std::vector<Rule>& rules) {
  HeatMap map{.title = title};
  std::set<int> lengths;
  for (const Measurement& row : compared) {
    if (!row.length) continue;
    lengths.insert(row.length);
    if (std::find(map.rows.begin(), map.rows.end(), row.family) == map.rows.end()) map.rows.push_back(row.family);
  }
  const std::vector<int> columns(lengths.begin(), lengths.end());
  for (const int n : columns) map.columns.push_back(length_text(n));
  map.cells.assign(map.rows.size(), std::vector<HeatMap::Cell>(columns.size()));
  std::set<size_t> lined;
  for (const Measurement& row : compared) {
    if (!row.length) continue;
    const auto at_row = size_t(std::find(map.rows.begin(), map.rows.end(), row.family) - map.rows.begin());
    const auto at_column = size_t(std::find(columns.begin(), columns.end(), row.length) - columns.begin());
    const Record& r = *row.record;
    map.cells[at_row][at_column] = {r.ratio.value, factor_text(r.ratio.value) + symbol(verdict_text(r)),
                                    line_text(r) + "\n" + row.series + " against " + r.baseline + ": " +
                                        ratio_text(r.ratio) + " " + verdict_text(r),
                                    verdict_text(r) == "UNCLEAR"};
    std::string source;
    const int from = threshold(row.problem, r.subject, rules, source);
    if (!from || !lined.insert(at_row).second) continue;
    const auto column = size_t(std::lower_bound(columns.begin(), columns.end(), from) - columns.begin());
    map.lines.push_back({at_row, column, fmt::format("{}\n{} from {} keys on ({})", row.family, r.subject, from,
                                                     source)});
  }
  return map;
}

// Takes the words that all names share out of them, so that a map has room beside them on a phone, and returns them.
std::string take_shared_words(std::vector<std::string>& names) {
  if (names.size() < 2) return "";
  SharedWords words = share_words(names);
  if (std::count(words.rest.begin(), words.rest.end(), "")) return "";  // a line that is part of another
  for (std::string& rest : words.rest)
    if (rest.ends_with(',')) rest.pop_back();
  names = std::move(words.rest);
  return std::move(words.shared);
}

}  // namespace

Section comparison_section(const Measurements& rows, const std::vector<Rule>& rules) {
  Section section{.id = "against", .title = "Against the baseline"};
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, std::vector<Measurement>> pairs;
  for (const Measurement& row : rows.all) {
    if (!row.ok() || row.record->baseline.empty()) continue;
    const std::pair key(row.series, row.record->baseline);
    if (!pairs.count(key)) order.push_back(key);
    pairs[key].push_back(row);
  }
  std::stable_partition(order.begin(), order.end(), [&](const auto& key) { return !pairs[key].front().peer(); });
  bool lines = false;
  for (const auto& key : order) {
    const std::string title = key.first + " against " + key.second;
    Figure figure{.title = title};
    figure.table = {.caption = title,
                    .head = {"problem", "times as fast", ratio_head(pairs[key]), "verdict"},
                    .facets = {3}};
    if (!rules.empty()) figure.table.head.push_back("tuned from");
    for (const Measurement& row : pairs[key]) {
      const Ratio& ratio = row.record->ratio;
      figure.table.rows.push_back(
          {{line_text(*row.record)}, number_cell(ratio.value, factor_text(ratio.value)),
           number_cell(ratio.interval.low,
                       fmt::format("{} ... {}{}", digits_text(ratio.interval.low), digits_text(ratio.interval.high),
                                   confidence_text(ratio.interval))),
           verdict_cell(verdict_text(*row.record))});
      if (rules.empty()) continue;
      std::string source;
      const int from = row.length ? threshold(row.problem, row.record->subject, rules, source) : 0;
      figure.table.rows.back().push_back(from ? number_cell(from, fmt::format("{}", from)) : empty_cell());
    }
    HeatMap map = map_of(pairs[key], "Times as fast as " + key.second + ": " + key.first, rules);
    lines = lines || !map.lines.empty();
    const std::string shared = take_shared_words(map.rows);
    if (!map.rows.empty()) figure.plots.push_back({shared, std::move(map)});
    section.figures.push_back(std::move(figure));
  }
  if (section.figures.empty()) return section;
  section.notes.push_back("Speed relative to the baseline, both timed interleaved, by problem and length. "
                          "\u25B2 faster, \u25BC slower, = the same, ? unclear.");
  if (lines) section.notes.push_back("A heavy line marks the length from which the tuned file chooses this subject.");
  else if (!rules.empty()) section.notes.push_back("The tuned file has no rule for the rows compared here.");
  return section;
}

}  // namespace attune
