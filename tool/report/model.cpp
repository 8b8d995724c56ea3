// SPDX-License-Identifier: Apache-2.0
#include "tool/report/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tool/report/caveats.h"
#include "tool/report/rows.h"
#include "tool/text.h"

namespace attune {
namespace {

// A subject against its baseline, over all problems where both were timed interleaved.
struct Standing {
  std::string sentence{};
  double mean = 1;                     // geometric, over the decided problems
  size_t problems = 0, unclear = 0;
  std::string subject{}, baseline{};
  bool peer = false;
};

std::vector<Standing> standings_of(const Measurements& rows) {
  struct Sum { std::map<std::string, int> count{}; double logs = 0, low = INFINITY, high = 0; size_t n = 0, decided = 0;
               bool peer = false; };
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, Sum> pairs;
  for (const Measurement& row : rows.all) {
    const Record& r = *row.record;
    if (!row.ok() || r.baseline.empty() || !(r.ratio.value > 0)) continue;
    const std::pair key(row.series, r.baseline);
    if (!pairs.count(key)) order.push_back(key);
    Sum& s = pairs[key];
    const std::string verdict = verdict_text(r);
    ++s.count[verdict], ++s.n, s.peer = row.peer();
    if (verdict != "FASTER" && verdict != "SLOWER" && verdict != "SAME") continue;
    ++s.decided, s.logs += std::log(r.ratio.value);
    s.low = std::min(s.low, r.ratio.value), s.high = std::max(s.high, r.ratio.value);
  }
  std::vector<Standing> all;
  for (const auto& key : order) {
    Sum& s = pairs[key];
    Standing out{.mean = s.decided ? std::exp(s.logs / double(s.decided)) : 1, .problems = s.n,
                 .unclear = s.n - s.decided, .subject = key.first, .baseline = key.second, .peer = s.peer};
    out.sentence = fmt::format("{} against {}: faster at {} of {}", key.first, key.second, s.count["FASTER"],
                               counted(s.n, "problem"));
    for (const auto& [words, verdict] : {std::pair("the same", "SAME"), {"slower", "SLOWER"}, {"unclear", "UNCLEAR"}})
      if (s.count[verdict]) out.sentence += fmt::format(", {} at {}", words, s.count[verdict]);
    if (s.decided)
      out.sentence += fmt::format("; geometric mean {}{}, from {} to {}", factor_text(out.mean),
                                  out.unclear ? fmt::format(" of the {} decided", s.decided) : "", factor_text(s.low),
                                  factor_text(s.high));
    out.sentence += ".";
    all.push_back(std::move(out));
  }
  // A report is about our backends: peers against peers come last, and are the headline only if there is nothing else.
  std::stable_partition(all.begin(), all.end(), [](const Standing& s) { return !s.peer; });
  return all;
}

struct Summary {
  size_t measured = 0, all = 0;
  std::map<std::string, int> parity{};
  int right = 0, wrong = 0, unchecked = 0;
  const Record* best = nullptr;  // largest share of the ceiling
};
Summary summary_of(const Measurements& rows) {
  Summary s{.all = rows.all.size()};
  for (const Measurement& row : rows.all) {
    const Record& r = *row.record;
    if (const Word<CheckVerdict>& v = r.parity.verdict; row.judged()) {
      ++s.parity[checked_text(v)];
      ++(passed(v) ? s.right : compared_nothing(v) ? s.unchecked : s.wrong);
    }
    if (!row.ok()) continue;
    ++s.measured;
    if (!row.peer() && r.ceiling_gflops > 0 &&
        (!s.best || r.gflops / r.ceiling_gflops > s.best->gflops / s.best->ceiling_gflops))
      s.best = &r;
  }
  return s;
}

std::vector<std::string> verdicts_of(const Measurements& rows, const Summary& s,
                                     const std::vector<Standing>& standings) {
  std::vector<std::string> all;
  for (const Standing& one : standings) all.push_back(one.sentence);
  if (s.best)
    all.push_back(
        fmt::format("Nearest to the machine's limit: {} at {:.0f} % of the measured ceiling ({} of {} {}), {}.",
                    s.best->subject, 100 * s.best->gflops / s.best->ceiling_gflops, rows.rate(s.best->gflops),
                    rows.rate(s.best->ceiling_gflops), rows.rate_unit, line_text(*s.best)));
  std::string checks;
  for (const auto& [verdict, n] : s.parity) checks += fmt::format("{}{} {}", checks.empty() ? "" : ", ", n, verdict);
  if (!checks.empty()) all.push_back(fmt::format("Checked on the timed buffers: {}.", checks));
  if (!s.measured) all.push_back("Nothing was measured: see the caveats.");
  return all;
}

std::vector<Fact> facts_of(const Measurements& rows, const Summary& s, const std::vector<Standing>& standings) {
  std::vector<Fact> facts;
  const auto widest = std::max_element(standings.begin(), standings.end(), [](const Standing& a, const Standing& b) {
    return a.peer != b.peer ? a.peer : a.problems < b.problems;
  });
  if (widest != standings.end() && widest->unclear == widest->problems) {
    facts.push_back({"unclear", "against " + widest->baseline,
                     fmt::format("{}, none of {} decided", widest->subject, counted(widest->problems, "problem")),
                     Tone::weak});
  } else if (widest != standings.end()) {
    // Between two of our backends the faster one is the headline: without a peer, the baseline is the planner's choice.
    const bool of_peer = std::any_of(rows.all.begin(), rows.all.end(), [&](const Measurement& row) {
      return row.peer() && row.record->subject == widest->baseline;
    });
    const bool inverted = widest->mean < 1 && !of_peer && !widest->peer;
    const double mean = inverted ? 1 / widest->mean : widest->mean;
    facts.push_back({factor_text(mean), "as fast as " + (inverted ? widest->subject : widest->baseline),
                     fmt::format("{}, geometric mean of {}{}", inverted ? widest->baseline : widest->subject,
                                 counted(widest->problems - widest->unclear, "problem"),
                                 widest->unclear ? fmt::format("; {} more unclear", widest->unclear) : ""),
                     widest->unclear ? Tone::plain : mean > 1 ? Tone::good : Tone::bad});
  }
  if (s.best)
    facts.push_back({fmt::format("{:.0f} %", 100 * s.best->gflops / s.best->ceiling_gflops), "of the measured ceiling",
                     fmt::format("{}, {} {}", s.best->subject, rows.rate(s.best->gflops), rows.rate_unit)});
  if (const int judged = s.right + s.wrong + s.unchecked; judged)
    facts.push_back({fmt::format("{} of {}", s.right, judged), "results correct",
                     s.unchecked ? fmt::format("{} not checked, the others on the timed buffers", s.unchecked)
                                 : "checked on the timed buffers",
                     s.wrong ? Tone::bad : s.unchecked ? Tone::plain : Tone::good});
  facts.push_back({fmt::format("{} of {}", s.measured, s.all), "rows measured",
                   s.measured == s.all ? "" : fmt::format("{} ended otherwise: see the caveats", s.all - s.measured)});
  std::stable_partition(facts.begin(), facts.end(), [](const Fact& f) { return f.tone == Tone::bad; });
  return facts;
}

// Rows that a run still has to measure: "running: 3 of 8 problems done". The first record of a run has their number.
std::string running_text(const std::vector<Record>& records) {
  struct Run { int planned = 0; bool closed = false; std::set<std::string> done{}; };
  std::map<std::string, Run> runs;
  for (const Record& r : records) {
    Run& run = runs[r.run];
    run.planned = std::max(run.planned, r.planned_rows), run.closed = run.closed || r.closes;
    run.done.insert(resume_key(r));
  }
  size_t planned = 0, done = 0;
  for (const auto& [name, run] : runs)
    if (run.planned && !run.closed) planned += size_t(run.planned), done += run.done.size();
  return planned ? fmt::format("not finished: {} of {}", std::min(done, planned), counted(planned, "problem")) : "";
}

std::string subtitle_of(const std::vector<Record>& records, const Summary& s) {
  std::set<int> threads;
  std::set<std::string> machines;
  std::string first, last;
  for (const Record& r : records) {
    if (r.threads) threads.insert(r.threads);
    const std::string& machine = machine_of(r);
    if (!machine.empty()) machines.insert(machine);
    const std::string day = r.provenance.time.substr(0, 10);
    if (!day.empty() && (first.empty() || day < first)) first = day;
    last = std::max(last, day);
  }
  std::vector<std::string> parts;
  std::string where;
  for (const std::string& machine : machines) where += (where.empty() ? "" : "; ") + machine;
  if (!where.empty()) parts.push_back("on " + where);
  if (threads.size() == 1) parts.push_back(counted(*threads.begin(), "thread"));
  if (!first.empty()) parts.push_back(first == last ? first : first + " to " + last);
  parts.push_back(fmt::format("{} of {} measured", s.measured, counted(s.all, "row")));
  if (const std::string running = running_text(records); !running.empty()) parts.push_back(running);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

Report make_report(const Sources& from) {
  const Measurements rows = rows_of(from.records);
  Changes changes;
  const Summary summary = summary_of(rows);
  const std::vector<Standing> standings = standings_of(rows);
  Report report{.title = "Attention, measured", .subtitle = subtitle_of(from.records, summary)};
  report.facts = facts_of(rows, summary, standings);
  report.verdicts = verdicts_of(rows, summary, standings);
  if (!from.baseline.empty()) {
    changes = compare(from.baseline, from.records, {});
    if (std::optional<Fact> fact = regression_fact(changes, from.baseline_name))
      report.facts.insert(report.facts.begin(), std::move(*fact));
  }
  report.advice = advice_of(rows);
  const auto add = [&](Section section) {
    if (!section.figures.empty() || !section.notes.empty()) report.sections.push_back(std::move(section));
  };
  add(comparison_section(rows, from.rules));
  if (!from.baseline.empty()) add(regression_section(changes, from.baseline_name));
  if (const Section* s = find_section(report, "regressions"))
    report.verdicts.insert(changes.regressed({}) ? report.verdicts.begin() : report.verdicts.end(), s->notes.front());
  add(ranking_section(from.records, from.base));
  add(length_section(rows));
  add(samples_section(rows));
  add(roofline_section(rows));
  add(scaling_section(rows));
  add(memory_section(rows));
  add(cost_section(rows, from.offers));
  add(parity_section(rows));
  add(trace_section(rows));
  add(every_row_section(rows));
  report.provenance = provenance_of(from.records);
  report.caveats = from.unfinished;
  for (std::string& caveat : caveats_of(from.records)) report.caveats.push_back(std::move(caveat));
  return report;
}

const Section* find_section(const Report& report, std::string_view id) {
  for (const Section& s : report.sections)
    if (s.id == id) return &s;
  return nullptr;
}

}  // namespace attune
