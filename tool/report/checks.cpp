// SPDX-License-Identifier: Apache-2.0
// Report sections on the checks, the clock and power meanwhile, the changes since an earlier run, and every row.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/compare/write.h"
#include "tool/record/busy.h"
#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

Chart trace(const Measurements& rows, std::string_view what, std::string_view unit, double (*value)(const Record&)) {
  Chart c{.title = fmt::format("{} by row", what),
          .x_label = "row, in the order of measurement",
          .y_label = fmt::format("{}", unit),
          .log_x = false,
          .from_zero = false};
  std::vector<std::string> order;
  std::map<std::string, Series> series;
  double x = 0;
  for (const Measurement& row : rows.all) {
    ++x;
    const Record& r = *row.record;
    const double y = value(r);
    if (!row.ok() || y <= 0) continue;
    if (!series.count(row.series)) order.push_back(row.series);
    Series& s = series[row.series];
    s.name = row.series, s.look = rows.looks.at(row.series), s.joined = false;
    Point p{x, y, y, y, fmt::format("row {:.0f}: {}\n{} {}", x, row.series, digits_text(y, 4), unit)};
    if (unit == "MHz" && !r.samples_mhz.empty()) {
      const auto [low, high] = std::minmax_element(r.samples_mhz.begin(), r.samples_mhz.end());
      p.low = *low, p.high = *high;
      p.label += fmt::format(", {:.0f} ... {:.0f} over its samples", *low, *high);
    }
    if (!r.slowed_by.empty()) p.label += "\nheld back by " + r.slowed_by;
    s.points.push_back(std::move(p));
  }
  for (const std::string& name : order) c.series.push_back(series[name]);
  return c;
}

}  // namespace

Section parity_section(const Measurements& rows) {
  Section section{.id = "parity", .title = "Parity"};
  struct Count {
    std::map<std::string, int> verdicts{};
    bool right = false, wrong = false;  // any of them
    const Record* worst = nullptr;  // largest share of the tolerance
    int64_t checked = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Count> by_subject;
  Table failures{.caption = "What failed the check",
                 .head = {"problem", "subject", "error / tolerance", "why"}};
  for (const Measurement& row : rows.all) {
    if (!row.judged()) continue;
    const Record& r = *row.record;
    if (!by_subject.count(r.subject)) order.push_back(r.subject);
    Count& c = by_subject[r.subject];
    ++c.verdicts[checked_text(r.parity.verdict)];
    c.right |= passed(r.parity.verdict), c.wrong |= r.parity.verdict == CheckVerdict::fail;
    c.checked += r.parity.rows;
    if (r.parity.rows && (!c.worst || r.parity.error > c.worst->parity.error)) c.worst = &r;
    if (r.parity.verdict == CheckVerdict::fail)
      failures.rows.push_back({{line_text(r)}, {row.series},
                               number_cell(r.parity.error, factor_text(r.parity.error), Tone::bad),
                               {r.parity.message + (r.parity.mistake.empty() ? "" : "; " + r.parity.mistake)}});
  }
  Table t{.caption = "Results checked on the timed buffers, on sampled rows of each",
          .head = {"subject", "verdicts", "rows of results", "worst error / tolerance", "worst at"}};
  for (const std::string& subject : order) {
    const Count& c = by_subject[subject];
    std::string verdicts;
    for (const auto& [verdict, n] : c.verdicts)
      verdicts += fmt::format("{}{} {}", verdicts.empty() ? "" : ", ", n, verdict);
    const Tone tone = c.wrong ? Tone::bad : c.right ? Tone::good : Tone::weak;
    const bool known = c.worst;
    t.rows.push_back({{subject},
                      {verdicts, NAN, tone},
                      number_cell(double(c.checked), fmt::format("{}", c.checked)),
                      known ? number_cell(c.worst->parity.error, digits_text(c.worst->parity.error)) : empty_cell(),
                      {known ? line_text(*c.worst) : ""}});
  }
  if (!t.rows.empty()) section.figures.push_back({"", {}, std::move(t)});
  if (!failures.rows.empty()) section.figures.push_back({"", {}, std::move(failures)});
  return section;
}

Section trace_section(const Measurements& rows) {
  Section section{.id = "trace", .title = "Clock and power"};
  Figure f;
  f.table = {.caption = "Every row, in the order of measurement",
             .head = {"row", "problem", "subject", "MHz", "MHz, least ... most", "W", "\u00B0C", "held back by"},
             .facets = {2, 7}};
  double x = 0;
  for (const Measurement& row : rows.all) {
    ++x;
    const Record& r = *row.record;
    if (!row.ok() || (r.mhz <= 0 && r.watts <= 0)) continue;
    const bool many = !r.samples_mhz.empty();
    const auto extremes = std::minmax_element(r.samples_mhz.begin(), r.samples_mhz.end());
    f.table.rows.push_back(
        {number_cell(x, fmt::format("{:.0f}", x)),
         {line_text(r)},
         {row.series},
         r.mhz > 0 ? number_cell(r.mhz, fmt::format("{:.0f}", r.mhz)) : empty_cell(),
         many ? number_cell(*extremes.first, fmt::format("{:.0f} ... {:.0f}", *extremes.first, *extremes.second))
              : empty_cell(),
         r.watts > 0 ? number_cell(r.watts, fmt::format("{:.0f}", r.watts)) : empty_cell(),
         r.celsius > 0 ? number_cell(r.celsius, fmt::format("{:.0f}", r.celsius)) : empty_cell(),
         {r.slowed_by}});
  }
  if (f.table.rows.empty()) return section;
  Chart clock = trace(rows, "Clock", "MHz", [](const Record& r) { return r.mhz; });
  Chart power = trace(rows, "Power", "W", [](const Record& r) { return r.watts; });
  if (!clock.series.empty())
    f.plots.push_back({"Measured SM clock: median over the samples of a row", std::move(clock)});
  if (!power.series.empty())
    f.plots.push_back({"Power: the highest reading while a row was measured", std::move(power)});
  section.figures.push_back(std::move(f));
  return section;
}

namespace {

std::string worst_first(const Changes& changes) {
  std::string sentence;
  for (const Change c : {Change::broken, Change::slower, Change::missing, Change::faster, Change::same, Change::unclear,
                         Change::added})
    if (const int n = changes.count(c)) sentence += fmt::format("{}{} {}", sentence.empty() ? "" : ", ", n, name(c));
  return sentence.empty() ? "no row" : sentence;
}

}  // namespace

std::optional<Fact> regression_fact(const Changes& changes, const std::string& name) {
  if (!changes.regressed({})) return {};
  const Ratio& all = changes.overall.ratio;
  const int rows = changes.regressions({});
  Fact fact{.value = fmt::format("{}", rows), .name = rows == 1 ? "regression" : "regressions",
            .detail = fmt::format("against {}: {}", name, worst_first(changes)), .tone = Tone::bad};
  if (rows == 0)
    fact.value = factor_text(all.value), fact.name = "as fast as " + name,
    fact.detail = fmt::format("all {} rows together are slower, though no row alone is", changes.overall.rows);
  return fact;
}

Section regression_section(const Changes& changes, const std::string& name) {
  Section section{.id = "regressions", .title = "Against the earlier run"};
  const bool sure = std::all_of(changes.rows.begin(), changes.rows.end(), [](const ChangedRow& r) {
    return r.ratio.interval.confidence <= 0 || r.ratio.interval.is_sure();
  });
  Table t{.caption = "Time before divided by time now, so above 1 is faster now",
          .head = {"problem", "subject", "timing", "before", "now", "times as fast",
                   sure ? "95 % interval" : "interval", "verdict", "note"},
          .facets = {7}};
  std::vector<const ChangedRow*> rows;
  for (const ChangedRow& row : changes.rows) rows.push_back(&row);
  const auto rank = [](const ChangedRow* r) {  // the worst first
    return std::pair(r->change == Change::broken ? 0 : r->change == Change::missing ? 1 : 2,
                     r->ratio.interval.confidence > 0 ? r->ratio.value : INFINITY);
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const auto* a, const auto* b) { return rank(a) < rank(b); });
  const auto time = [](double ns) { return ns > 0 ? number_cell(ns, nanoseconds_text(ns)) : empty_cell(); };
  for (const ChangedRow* r : rows) {
    const bool known = r->ratio.interval.confidence > 0;
    const Tone tone = r->change == Change::faster ? Tone::good
                      : r->change == Change::slower || r->change == Change::broken || r->change == Change::missing
                          ? Tone::bad : Tone::weak;
    t.rows.push_back({{r->problem}, {r->subject}, {r->setting}, time(r->before_ns), time(r->after_ns),
                      known ? number_cell(r->ratio.value, factor_text(r->ratio.value)) : empty_cell(),
                      known ? number_cell(r->ratio.interval.low,
                                          fmt::format("{} ... {}{}", digits_text(r->ratio.interval.low),
                                                      digits_text(r->ratio.interval.high),
                                                      confidence_text(r->ratio.interval)))
                            : empty_cell(),
                      {attune::name(r->change), NAN, tone}, {r->note, NAN, Tone::weak}});
  }
  section.notes.push_back(fmt::format("Against {}: {}.", name, worst_first(changes)));
  if (changes.overall.rows) section.notes.push_back(overall_text(changes.overall));
  section.notes.insert(section.notes.end(), changes.caveats.begin(), changes.caveats.end());
  if (!t.rows.empty()) section.figures.push_back({"", {}, std::move(t)});
  return section;
}

namespace {

// What a median leaves out, and the rates, of the rows that were measured by this version.
Table rates_table(const Measurements& rows) {
  Table t{.caption = "Samples and rates: each rate is of the median",
          .head = {"problem", "subject", "samples", "mean", "standard deviation", "95th percentile", "99th percentile",
                   "queries/s", "sequences/s", "tokens/s"},
          .facets = {1}};
  const auto time = [](double ns) { return number_cell(ns, nanoseconds_text(ns)); };
  const auto rate = [](double each_s) { return number_cell(each_s, digits_text(each_s)); };
  for (const Measurement& row : rows.all) {
    const Record& r = *row.record;
    if (!row.ok() || r.version < 4 || r.mean_ns <= 0) continue;
    t.rows.push_back({{line_text(r)},
                      {row.series},
                      number_cell(double(r.samples_ns.size()), fmt::format("{}", r.samples_ns.size())),
                      time(r.mean_ns), time(r.deviation_ns), time(r.p95_ns), time(r.p99_ns), rate(r.queries_s),
                      rate(r.sequences_s), rate(r.tokens_s)});
  }
  return t;
}

}  // namespace

Section every_row_section(const Measurements& rows) {
  Section section{.id = "rows", .title = "Every row"};
  Table t{.caption = "All rows of the files",
          .head = {"pass", "dtype", "problem", "subject", "status", "median", "half interval", rows.rate_unit,
                   "against baseline", "verdict", "parity"},
          .facets = {0, 1, 3, 9}};
  const bool sparse = std::any_of(rows.all.begin(), rows.all.end(),
                                  [](const Measurement& row) { return row.record->shown_blocks > 0; });
  if (sparse) t.head.push_back("density");
  const bool busy = std::any_of(rows.all.begin(), rows.all.end(),
                                [](const Measurement& row) { return row.ok() && !busy_text(*row.record).empty(); });
  if (busy) t.head.push_back("busy");
  for (const Measurement& row : rows.all) {
    const Record& r = *row.record;
    std::vector<TableCell> cells = {{row.length ? name(row.problem.pass) : ""},
                                    {row.length ? name(row.problem.dtype) : ""},
                                    {line_text(r)},
                                    {row.series},
                                    {r.status.text(), NAN, r.status == RecordStatus::ok ? Tone::weak : Tone::bad}};
    if (row.ok()) {
      const double half = half_width(r.interval, r.median_ns);
      cells.push_back(number_cell(r.median_ns, nanoseconds_text(r.median_ns)));
      cells.push_back(number_cell(half, fmt::format("{:.1f} %{}", 100 * half, confidence_text(r.interval))));
      cells.push_back(number_cell(r.gflops, rows.rate(r.gflops)));
    } else {
      cells.insert(cells.end(), {TableCell{r.message, NAN, Tone::weak}, empty_cell(), empty_cell()});
    }
    cells.push_back(r.baseline.empty() || !row.ok() ? empty_cell()
                                                    : number_cell(r.ratio.value, factor_text(r.ratio.value)));
    cells.push_back(verdict_cell(verdict_text(r)));
    const bool wrong = r.parity.verdict == CheckVerdict::fail;
    cells.push_back({r.parity.verdict.text(), NAN, wrong ? Tone::bad : Tone::weak});
    if (sparse)
      cells.push_back(r.shown_blocks > 0 ? number_cell(r.density, digits_text(r.density)) : empty_cell());
    if (busy) cells.push_back({row.ok() ? busy_text(r) : "", NAN, Tone::bad});
    t.rows.push_back(std::move(cells));
  }
  if (!t.rows.empty()) section.figures.push_back({"", {}, std::move(t)});
  if (Table rates = rates_table(rows); !rates.rows.empty()) section.figures.push_back({"", {}, std::move(rates)});
  return section;
}

}  // namespace attune
