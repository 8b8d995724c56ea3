// SPDX-License-Identifier: Apache-2.0
#include "tool/history/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/record/busy.h"
#include "tool/report/caveats.h"
#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr size_t kMostPlots = 64;  // a page of hundreds of rows stays small

// The last change decides: a row that became slower and was mended is well.
enum class Standing { slower, faster, steady };
Standing standing_of(const Trend& t) {
  if (t.changes.empty()) return Standing::steady;
  return t.changes.back().is_slower() ? Standing::slower : Standing::faster;
}

// Slower rows first, by how much; then faster ones; then steady ones in their order.
std::vector<const Trend*> by_weight(const std::vector<Trend>& trends) {
  std::vector<const Trend*> all;
  for (const Trend& t : trends) all.push_back(&t);
  std::stable_sort(all.begin(), all.end(), [](const Trend* a, const Trend* b) {
    const Standing of_a = standing_of(*a), of_b = standing_of(*b);
    if (of_a != of_b) return of_a < of_b;
    if (of_a == Standing::steady) return false;
    const double x = a->changes.back().ratio, y = b->changes.back().ratio;
    return of_a == Standing::slower ? x < y : x > y;
  });
  return all;
}

std::string commit_text(const Record& r) { return r.provenance.commit.substr(0, 10); }

std::string label_of(const Record& r) {
  return fmt::format("{}, {}\n{} ({} ... {}{})", r.provenance.time, commit_text(r), nanoseconds_text(r.median_ns),
                     nanoseconds_text(r.interval.low), nanoseconds_text(r.interval.high), confidence_text(r.interval));
}

Chart chart_of(const Trend& trend) {
  Chart c{.title = "Time by run: " + heading(*trend.points.front()), .x_label = "run", .y_label = "median time",
          .log_x = false, .from_zero = false, .y_text = nanoseconds_tick};
  Series s{.name = trend.points.front()->subject, .look = 0};
  for (size_t n = 0; n < trend.points.size(); ++n) {
    const Record& r = *trend.points[n];
    const bool sure = r.interval.low > 0;
    s.points.push_back({double(n + 1), r.median_ns, sure ? r.interval.low : r.median_ns,
                        sure ? r.interval.high : r.median_ns, label_of(r)});
  }
  for (size_t n = 0; n <= trend.changes.size() && !trend.changes.empty(); ++n) {
    const bool is_last = n == trend.changes.size();
    const double first = n ? double(trend.changes[n - 1].at) + 0.6 : 0.6;
    const double end = is_last ? double(trend.points.size()) + 0.4 : double(trend.changes[n].at) + 0.4;
    const double level = is_last ? trend.changes.back().after_ns : trend.changes[n].before_ns;
    c.bounds.push_back({.name = "", .points = {{.x = first, .y = level}, {.x = end, .y = level}}});
  }
  for (size_t n = 1; n <= trend.points.size(); ++n) c.x_ticks.push_back(double(n));
  c.series.push_back(std::move(s));
  return c;
}

TableCell speed_cell(Speed speed) {
  return {name(speed), NAN, speed == Speed::slower ? Tone::bad : speed == Speed::faster ? Tone::good : Tone::weak};
}

Table table_of(const Trend& trend) {
  Table t{.caption = heading(*trend.points.front()),
          .head = {"run", "time", "commit", "median", "interval", "against the run before", "verdict", "machine"},
          .rows = {}};
  for (size_t n = 0; n < trend.points.size(); ++n) {
    const Record& r = *trend.points[n];
    const RunStep s = n ? run_step(*trend.points[n - 1], r) : RunStep{};
    std::string machine = busy_text(r);
    for (const std::string& what : s.machine) machine += (machine.empty() ? "" : "; ") + what;
    t.rows.push_back({number_cell(double(n + 1), join(n + 1)), {r.provenance.time}, {commit_text(r)},
                      number_cell(r.median_ns, nanoseconds_text(r.median_ns)),
                      number_cell(half_width(r.interval, r.median_ns),
                                  fmt::format("{} ... {}{}", nanoseconds_text(r.interval.low),
                                              nanoseconds_text(r.interval.high), confidence_text(r.interval))),
                      n ? number_cell(s.ratio.value, factor_text(s.ratio.value)) : empty_cell(),
                      n ? speed_cell(s.speed) : empty_cell(), {machine}});
  }
  return t;
}

Section change_section(const std::vector<const Trend*>& trends) {
  Section section{.id = "changes", .title = "Changes"};
  Table t{.caption = "Changes that lasted",
          .head = {"change", "row", "from", "at", "before", "after", "ratio", "chance", "machine"}, .facets = {0}};
  for (const Trend* trend : trends)
    for (const ChangePoint& c : trend->changes) {
      const Record& r = *trend->points[c.at];
      t.rows.push_back({{c.is_slower() ? "SLOWER" : "FASTER", NAN, c.is_slower() ? Tone::bad : Tone::good},
                        {heading(r)}, {commit_text(r)}, {r.provenance.time},
                        number_cell(c.before_ns, nanoseconds_text(c.before_ns)),
                        number_cell(c.after_ns, nanoseconds_text(c.after_ns)),
                        number_cell(c.ratio, factor_text(c.ratio)),
                        number_cell(c.chance, without_zeros(digits_text(100 * c.chance)) + " %"),
                        {fmt::format("{}", fmt::join(c.machine, "; "))}});
    }
  if (t.rows.empty()) return section;
  section.notes = {"A change separates two levels of at least two runs each. The ratio is the time before over the "
                   "time after, so above 1 is faster. The chance is the share of random orders of the same times that "
                   "show a change as large; at most 1 % is called a change."};
  section.figures.push_back({"", {}, std::move(t)});
  return section;
}

Section row_section(const std::vector<const Trend*>& trends) {
  Section section{.id = "rows", .title = "Rows"};
  size_t only_tables = 0;
  for (const Trend* trend : trends) {
    Figure figure{.title = heading(*trend->points.front()), .plots = {}, .table = table_of(*trend)};
    if (trend->points.size() > 1 && section.figures.size() < kMostPlots)
      figure.plots.push_back({"Median and its interval by run; dashed: levels", chart_of(*trend)});
    only_tables += figure.plots.empty();
    section.figures.push_back(std::move(figure));
  }
  if (only_tables)
    section.notes.push_back(fmt::format("{} without a plot: those of one run, and those beyond the first {}.",
                                        counted(only_tables, "row"), kMostPlots));
  return section;
}

std::string subtitle_of(const std::vector<Trend>& trends, const std::vector<Record>& records) {
  std::set<std::string> runs, commits;
  std::string first, last;
  for (const Record& r : records) {
    runs.insert(r.run), commits.insert(r.provenance.commit);
    const std::string day = r.provenance.time.substr(0, 10);
    if (!day.empty() && (first.empty() || day < first)) first = day;
    last = std::max(last, day);
  }
  return fmt::format("{}, {}, {}, {}", counted(trends.size(), "row"), counted(runs.size(), "run"),
                     counted(commits.size(), "commit"), first == last ? first : first + " to " + last);
}

}  // namespace

Report history_report(const std::vector<Trend>& trends, const std::vector<std::string>& left_out) {
  std::vector<Record> records;
  for (const Trend& t : trends)
    for (const Record* r : t.points) records.push_back(*r);
  const std::vector<const Trend*> order = by_weight(trends);
  const auto count = [&](Standing which) {
    return size_t(std::count_if(trends.begin(), trends.end(), [&](const Trend& t) { return standing_of(t) == which; }));
  };
  const size_t slower = count(Standing::slower), faster = count(Standing::faster), steady = count(Standing::steady);
  Report report{.title = "Attention over time", .subtitle = subtitle_of(trends, records)};
  if (slower) report.facts.push_back({join(slower), slower == 1 ? "row became slower" : "rows became slower",
                                      "and stayed so", Tone::bad});
  if (faster) report.facts.push_back({join(faster), faster == 1 ? "row became faster" : "rows became faster",
                                      "and stayed so", Tone::good});
  report.facts.push_back({join(steady), steady == 1 ? "row without a change" : "rows without a change",
                          "of those that have enough runs to tell"});
  for (const Trend* t : order)
    for (const ChangePoint& c : t->changes)
      if (report.verdicts.size() < 10) report.verdicts.push_back(heading(*t->points.front()) + ": " + sentence(*t, c));
  if (report.verdicts.empty())
    report.verdicts.push_back("No row changed its level. To tell takes about eight runs before and eight after, or "
                              "three after twenty.");
  for (Section section : {change_section(order), row_section(order)})
    if (!section.figures.empty()) report.sections.push_back(std::move(section));
  report.provenance = provenance_of(records);
  report.caveats = left_out;
  for (std::string& caveat : caveats_of(records)) report.caveats.push_back(std::move(caveat));
  return report;
}

}  // namespace attune
