// SPDX-License-Identifier: Apache-2.0
// Time and rate by length: a pair of plots per family of problems. Families with a single length share one table.
#include <fmt/format.h>

#include <set>

#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

std::vector<TableCell> table_row(const Measurements& rows, const Measurement& row, bool with_problem) {
  const Record& r = *row.record;
  std::vector<TableCell> cells;
  if (with_problem) cells.push_back({line_text(r)});
  else cells.push_back(number_cell(row.length, fmt::format("{}", row.length)));
  cells.push_back({row.series});
  if (!row.ok()) {
    cells.push_back({r.status.text() + (r.message.empty() ? "" : ": " + r.message), NAN, Tone::bad});
    while (cells.size() < 9) cells.push_back(empty_cell());
    return cells;
  }
  cells.push_back(number_cell(r.median_ns, nanoseconds_text(r.median_ns)));
  cells.push_back(number_cell(half_width(r.interval, r.median_ns),
                              fmt::format("{} ... {}{}", nanoseconds_text(r.interval.low),
                                          nanoseconds_text(r.interval.high), confidence_text(r.interval))));
  cells.push_back(number_cell(double(r.samples_ns.size()), fmt::format("{}", r.samples_ns.size())));
  cells.push_back(number_cell(r.gflops, rows.rate(r.gflops)));
  const double share = r.ceiling_gflops > 0 ? r.gflops / r.ceiling_gflops : 0;
  cells.push_back(share > 0 ? number_cell(share, fmt::format("{:.0f} %", 100 * share)) : empty_cell());
  cells.push_back(r.baseline.empty()
                      ? empty_cell()
                      : number_cell(r.ratio.value, factor_text(r.ratio.value) + " " + verdict_text(r),
                                    verdict_cell(verdict_text(r)).tone));
  const Word<CheckVerdict>& checked = r.parity.verdict;
  const Tone tone = passed(checked) ? Tone::plain : checked == CheckVerdict::fail ? Tone::bad : Tone::weak;
  cells.push_back({checked.text(), NAN, tone});
  return cells;
}

Table table_of(const Measurements& rows, const std::vector<Measurement>& some, bool with_problem, std::string caption) {
  Table t{.caption = std::move(caption),
          .head = {with_problem ? "problem" : "length", "subject", "median", interval_head(some), "samples",
                   rows.rate_unit, "of ceiling", "against baseline", "parity"},
          .facets = {1}};
  for (const Measurement& row : some) t.rows.push_back(table_row(rows, row, with_problem));
  return t;
}

Point point_of(const Measurements& rows, const Measurement& row, bool rate) {
  const Record& r = *row.record;
  const std::string label = fmt::format(
      "{}, {} keys\n{} ({} ... {}{})\n{} {}", row.series, row.length, nanoseconds_text(r.median_ns),
      nanoseconds_text(r.interval.low), nanoseconds_text(r.interval.high), confidence_text(r.interval),
      rows.rate(r.gflops), rows.rate_unit);
  if (!rate) return {double(row.length), r.median_ns, r.interval.low, r.interval.high, label};
  // A rate is flops / time, so the ends of its interval are swapped.
  const auto at = [&](double ns) { return (ns > 0 ? r.flops / ns : r.gflops) / rows.rate_scale; };
  return {double(row.length), r.gflops / rows.rate_scale, at(r.interval.high), at(r.interval.low), label};
}

Chart chart_of(const Measurements& rows, const std::vector<Measurement>& some, bool rate, const std::string& family) {
  Chart c{.title = (rate ? rows.rate_unit + " by length: " : "Time by length: ") + family,
          .x_label = "length (keys)",
          .y_label = rate ? rows.rate_unit : "median time",
          .log_y = !rate,
          .x_text = length_text,
          .y_text = rate ? nullptr : nanoseconds_tick};
  std::set<double> lengths;
  std::set<int> threads;
  std::map<std::string, double> ceilings;
  std::vector<std::string> order;
  std::map<std::string, std::map<int, Point>> series;  // for equal lengths, the last one measured
  for (const Measurement& row : some)
    if (row.ok()) threads.insert(row.record->threads);
  for (const Measurement& row : some) {
    if (!row.ok() || !row.length || (rate && row.record->gflops <= 0)) continue;
    if (!series.count(row.series)) order.push_back(row.series);
    series[row.series][row.length] = point_of(rows, row, rate);
    lengths.insert(row.length);
    if (const Record& r = *row.record; r.ceiling_gflops > 0)
      ceilings["measured ceiling" + (r.ceiling.empty() ? "" : ", " + r.ceiling) +
               (threads.size() > 1 && r.threads ? fmt::format(", {} threads", r.threads) : "")] =
          r.ceiling_gflops / rows.rate_scale;
  }
  for (const std::string& name : order) {
    Series s{.name = name, .look = rows.looks.at(name)};
    for (const auto& [length, point] : series[name]) s.points.push_back(point);
    c.series.push_back(std::move(s));
  }
  c.x_ticks.assign(lengths.begin(), lengths.end());
  if (rate) for (const auto& [name, level] : ceilings) c.levels.push_back({name, level});
  return c;
}

}  // namespace

Section length_section(const Measurements& rows) {
  Section section{.id = "lengths", .title = "Time against length"};
  std::vector<Measurement> single;
  for (const auto& [family, all] : families_of(rows)) {
    std::set<int> lengths;
    for (const Measurement& row : all)
      if (row.ok() && row.length) lengths.insert(row.length);
    if (lengths.size() < 2) {
      single.insert(single.end(), all.begin(), all.end());
      continue;
    }
    Figure f{.title = family, .table = table_of(rows, all, false, family)};
    f.plots = {{"Time of one call; bands are " + interval_head(all) + "s" + " of the median; both axes logarithmic",
                chart_of(rows, all, false, family)},
               {"Rate over visible pairs; the dashed line was measured on this machine",
                chart_of(rows, all, true, family)}};
    section.figures.push_back(std::move(f));
  }
  if (!single.empty())
    section.figures.push_back({section.figures.empty() ? "Measured problems" : "Problems of a single length", {},
                               table_of(rows, single, true, "Problems of a single length")});
  return section;
}

}  // namespace attune
