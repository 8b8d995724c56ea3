#include "tool/report/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/problem.h"
#include "tool/report/caveats.h"
#include "tool/text.h"

namespace attune {
namespace {

// A record with what its line says. Lines of a newer grammar, or nonsense, stay in the tables and out of the plots.
struct Row {
  const Record* record = nullptr;
  std::string family{};  // the line without the lengths that vary
  int length = 0;        // 0: unknown
  bool ok() const { return record->status == "ok" && record->median_ns > 0; }
};

Row row_of(const Record& r) {
  Problem p;
  if (!parse(r.problem, p).ok()) return {&r, r.problem, 0};
  const int length = p.len_k;
  const bool square = p.len_q == p.len_k;
  p.len_k = 1;
  if (square) p.len_q = 1;
  const std::string line = name(p);
  const std::string_view lengths = square ? " q1 k1" : " k1";
  const size_t at = line.find(lengths);
  return {&r, line.substr(0, at) + line.substr(at + lengths.size()), length};
}

std::string length_text(double v) {
  const auto n = int64_t(v);
  return n >= 1024 && n % 1024 == 0 ? fmt::format("{}K", n / 1024) : fmt::format("{}", n);
}
std::string nanoseconds_text(double ns) { return seconds_text(ns * 1e-9); }
std::string nanoseconds_tick(double ns) { return tick_text(ns * 1e-9); }

// "cpu_forward", and what sets it apart from others of the same name in this report.
std::string series_name(const Record& r, bool many_threads) {
  std::string s = r.subject;
  // Each device's headline goes without.
  if (const std::string timing = timing_text(r); timing != (r.threads ? "warm" : "cold")) s += " " + timing;
  if (many_threads && r.threads) s += fmt::format(", {} thread{}", r.threads, r.threads == 1 ? "" : "s");
  return s;
}

TableCell number(double value, std::string text) { return {std::move(text), value}; }
TableCell empty() { return {.text = "", .sort = NAN, .tone = Tone::weak}; }

TableCell verdict_cell(const Record& r) {
  const Tone tone = r.verdict == "FASTER" ? Tone::good : r.verdict == "SLOWER" ? Tone::bad : Tone::weak;
  return {r.verdict, NAN, tone};
}
TableCell parity_cell(const Checked& c) {
  return {c.verdict, NAN, c.verdict.starts_with("PASS") ? Tone::plain : c.verdict == "FAIL" ? Tone::bad : Tone::weak};
}

std::string ratio_text(const Ratio& r) {
  return fmt::format("{} [{}, {}]", factor_text(r.value), digits_text(r.interval.low), digits_text(r.interval.high));
}

std::vector<TableCell> table_row(const Row& row, bool with_problem, bool many_threads) {
  const Record& r = *row.record;
  std::vector<TableCell> cells;
  if (with_problem) cells.push_back({r.problem});
  else cells.push_back(number(row.length, fmt::format("{}", row.length)));
  cells.push_back({series_name(r, many_threads)});
  if (!row.ok()) {
    cells.push_back({r.status + (r.message.empty() ? "" : ": " + r.message), NAN, Tone::bad});
    while (cells.size() < 9) cells.push_back(empty());
    return cells;
  }
  cells.push_back(number(r.median_ns, nanoseconds_text(r.median_ns)));
  cells.push_back(number(half_width(r.interval, r.median_ns), fmt::format("{} ... {}", nanoseconds_text(r.interval.low),
                                                                          nanoseconds_text(r.interval.high))));
  cells.push_back(number(double(r.samples_ns.size()), fmt::format("{}", r.samples_ns.size())));
  cells.push_back(number(r.gflops, digits_text(r.gflops)));
  const double share = r.ceiling_gflops > 0 ? r.gflops / r.ceiling_gflops : 0;
  cells.push_back(share > 0 ? number(share, fmt::format("{:.0f} %", 100 * share)) : empty());
  cells.push_back(r.baseline.empty() ? empty() : number(r.ratio.value, factor_text(r.ratio.value) + " " + r.verdict));
  if (!r.baseline.empty()) cells.back().tone = verdict_cell(r).tone;
  cells.push_back(parity_cell(r.parity));
  return cells;
}

Table table_of(const std::vector<Row>& rows, bool with_problem, bool many_threads, std::string caption) {
  Table t{.caption = std::move(caption),
          .head = {with_problem ? "problem" : "length", "subject", "median", "95 % interval", "samples", "GFLOP/s",
                   "of ceiling", "against baseline", "parity"}};
  for (const Row& row : rows) t.rows.push_back(table_row(row, with_problem, many_threads));
  return t;
}

Point point_of(const Row& row, bool rate) {
  const Record& r = *row.record;
  const std::string label =
      fmt::format("{}\n{}: {} ({} ... {})\n{} GFLOP/s", r.problem, r.subject, nanoseconds_text(r.median_ns),
                  nanoseconds_text(r.interval.low), nanoseconds_text(r.interval.high), digits_text(r.gflops));
  if (!rate) return {double(row.length), r.median_ns, r.interval.low, r.interval.high, label};
  // A rate is flops / time, so its interval is the one of the time, turned over.
  const auto at = [&](double ns) { return ns > 0 ? r.flops / ns : r.gflops; };
  return {double(row.length), r.gflops, at(r.interval.high), at(r.interval.low), label};
}

Chart chart_of(const std::vector<Row>& rows, bool rate, bool many_threads, const std::string& family) {
  Chart c{.title = (rate ? "GFLOP/s by length: " : "Time by length: ") + family,
          .x_label = "length (keys)",
          .y_label = rate ? "GFLOP/s" : "median time",
          .log_y = !rate,
          .x_text = length_text,
          .y_text = rate ? nullptr : nanoseconds_tick};
  std::set<double> lengths;
  std::map<std::string, double> ceilings;
  std::vector<std::string> order;
  std::map<std::string, std::map<int, Point>> series;  // of equal lengths the last one measured
  for (const Row& row : rows) {
    if (!row.ok() || !row.length || (rate && row.record->gflops <= 0)) continue;
    const std::string name = series_name(*row.record, many_threads);
    if (!series.count(name)) order.push_back(name);
    series[name][row.length] = point_of(row, rate);
    lengths.insert(row.length);
    if (const Record& r = *row.record; r.ceiling_gflops > 0)
      ceilings["measured ceiling" + (r.ceiling.empty() ? "" : ", " + r.ceiling) +
               (many_threads && r.threads ? fmt::format(", {} threads", r.threads) : "")] = r.ceiling_gflops;
  }
  for (const std::string& name : order) {
    Series s{.name = name};
    for (const auto& [length, point] : series[name]) s.points.push_back(point);
    c.series.push_back(std::move(s));
  }
  c.x_ticks.assign(lengths.begin(), lengths.end());
  if (rate) for (const auto& [name, gflops] : ceilings) c.levels.push_back({name, gflops});
  return c;
}

// Groups in the order they first appear; those with a single length share one table at the end.
std::vector<Group> groups_of(const std::vector<Row>& rows, bool many_threads) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Row>> families;
  for (const Row& row : rows) {
    if (!families.count(row.family)) order.push_back(row.family);
    families[row.family].push_back(row);
  }
  std::vector<Group> groups;
  std::vector<Row> single;
  for (const std::string& family : order) {
    std::vector<Row>& all = families[family];
    std::set<int> lengths;
    for (const Row& row : all)
      if (row.ok() && row.length) lengths.insert(row.length);
    if (lengths.size() < 2) {
      single.insert(single.end(), all.begin(), all.end());
      continue;
    }
    std::stable_sort(all.begin(), all.end(), [](const Row& a, const Row& b) { return a.length < b.length; });
    Group g{.title = family, .table = table_of(all, false, many_threads, family)};
    g.charts = {chart_of(all, false, many_threads, family), chart_of(all, true, many_threads, family)};
    groups.push_back(std::move(g));
  }
  if (!single.empty())
    groups.push_back({groups.empty() ? "Measured problems" : "Problems of a single length", {},
                      table_of(single, true, many_threads, "Problems of a single length")});
  return groups;
}

std::string symbol(const std::string& verdict) {
  return verdict == "FASTER" ? " \u25B2" : verdict == "SLOWER" ? " \u25BC" : verdict == "SAME" ? " =" : " ?";
}

std::vector<Comparison> comparisons_of(const std::vector<Row>& rows, bool many_threads) {
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, std::vector<Row>> pairs;
  for (const Row& row : rows) {
    if (!row.ok() || row.record->baseline.empty()) continue;
    const std::pair key(series_name(*row.record, many_threads), row.record->baseline);
    if (!pairs.count(key)) order.push_back(key);
    pairs[key].push_back(row);
  }
  std::vector<Comparison> all;
  for (const auto& key : order) {
    const auto& compared = pairs[key];
    Comparison c{.subject = key.first, .baseline = key.second};
    c.table = {.caption = c.subject + " against " + c.baseline,
               .head = {"problem", "times as fast", "95 % interval", "verdict"}};
    c.map.title = "Times as fast as " + c.baseline + ": " + c.subject;
    std::set<int> lengths;
    std::vector<std::string> families;
    std::map<std::string, int> count;
    double logs = 0, low = INFINITY, high = 0;
    for (const Row& row : compared) {
      const Record& r = *row.record;
      c.table.rows.push_back({{r.problem}, number(r.ratio.value, factor_text(r.ratio.value)),
                              number(r.ratio.interval.low, fmt::format("{} ... {}", digits_text(r.ratio.interval.low),
                                                                       digits_text(r.ratio.interval.high))),
                              verdict_cell(r)});
      ++count[r.verdict];
      logs += std::log(r.ratio.value), low = std::min(low, r.ratio.value), high = std::max(high, r.ratio.value);
      if (!row.length) continue;
      lengths.insert(row.length);
      if (std::find(families.begin(), families.end(), row.family) == families.end()) families.push_back(row.family);
    }
    const std::vector<int> columns(lengths.begin(), lengths.end());
    for (const int n : columns) c.map.columns.push_back(length_text(n));
    c.map.rows = families;
    c.map.cells.assign(families.size(), std::vector<HeatMap::Cell>(columns.size()));
    for (const Row& row : compared) {
      if (!row.length) continue;
      const auto at_row = size_t(std::find(families.begin(), families.end(), row.family) - families.begin());
      const auto at_column = size_t(std::find(columns.begin(), columns.end(), row.length) - columns.begin());
      const Record& r = *row.record;
      c.map.cells[at_row][at_column] = {r.ratio.value, factor_text(r.ratio.value) + symbol(r.verdict),
                                        r.problem + "\n" + ratio_text(r.ratio) + " " + r.verdict};
    }
    c.sentence = fmt::format("{} against {}: faster at {} of {} problems", c.subject, c.baseline, count["FASTER"],
                             compared.size());
    for (const auto& [word, verdict] : {std::pair("the same", "SAME"), {"slower", "SLOWER"}, {"unclear", "UNCLEAR"}})
      if (count[verdict]) c.sentence += fmt::format(", {} at {}", word, count[verdict]);
    c.sentence +=
        fmt::format("; geometric mean {}, from {} to {}.", factor_text(std::exp(logs / double(compared.size()))),
                    factor_text(low), factor_text(high));
    all.push_back(std::move(c));
  }
  return all;
}

std::vector<std::string> verdicts_of(const std::vector<Row>& rows, const std::vector<Comparison>& comparisons) {
  std::vector<std::string> all;
  for (const Comparison& c : comparisons) all.push_back(c.sentence);
  std::map<std::string, int> parity;
  const Record* best = nullptr;  // by its share of the ceiling
  size_t measured = 0;
  for (const Row& row : rows) {
    if (!row.ok()) continue;
    ++measured;
    const Record& r = *row.record;
    ++parity[r.parity.verdict.empty() ? "UNCHECKED" : r.parity.verdict];
    if (r.ceiling_gflops > 0 && (!best || r.gflops / r.ceiling_gflops > best->gflops / best->ceiling_gflops)) best = &r;
  }
  if (best)
    all.push_back(
        fmt::format("Nearest to the machine's limit: {} at {:.0f} % of the measured ceiling ({} of {} GFLOP/s), {}.",
                    best->subject, 100 * best->gflops / best->ceiling_gflops, digits_text(best->gflops),
                    digits_text(best->ceiling_gflops), best->problem));
  std::string checks;
  for (const auto& [verdict, n] : parity) checks += fmt::format("{}{} {}", checks.empty() ? "" : ", ", n, verdict);
  if (measured) all.push_back(fmt::format("Checked on the very buffers that were timed: {}.", checks));
  else all.push_back("Nothing was measured: see the caveats.");
  return all;
}

}  // namespace

Report make_report(const std::vector<Record>& records) {
  std::vector<Row> rows;
  std::set<int> threads;
  std::set<std::string> machines;
  size_t ok = 0;
  for (const Record& r : records) {
    rows.push_back(row_of(r));
    if (r.threads) threads.insert(r.threads);
    const std::string& machine = r.threads ? r.provenance.cpu : r.provenance.gpu;
    if (!machine.empty()) machines.insert(machine);
    ok += rows.back().ok();
  }
  const bool many_threads = threads.size() > 1;
  Report report{.title = "Attention, measured"};
  std::string where;
  for (const std::string& machine : machines) where += (where.empty() ? "" : "; ") + machine;
  if (!where.empty()) report.subtitle = "on " + where;
  if (threads.size() == 1 && !records.empty())
    report.subtitle += fmt::format("{}{} thread{}", report.subtitle.empty() ? "" : ", ", *threads.begin(),
                                   *threads.begin() == 1 ? "" : "s");
  report.subtitle += fmt::format("{}{} of {} rows measured", report.subtitle.empty() ? "" : ", ", ok, records.size());
  report.comparisons = comparisons_of(rows, many_threads);
  report.verdicts = verdicts_of(rows, report.comparisons);
  report.groups = groups_of(rows, many_threads);
  report.provenance = provenance_of(records);
  report.caveats = caveats_of(records);
  return report;
}

}  // namespace attune
