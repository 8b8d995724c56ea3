// SPDX-License-Identifier: Apache-2.0
#include "tool/compare/changes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tool/compare/overall.h"
#include "tool/timing/fit.h"
#include "tool/record/busy.h"

namespace attune {
namespace {

bool is_measured(const Record& r) { return r.status == RecordStatus::ok && r.median_ns > 0 && !r.samples_ns.empty(); }
bool is_broken(const Record& r) {
  return r.status == RecordStatus::failed || r.status == RecordStatus::refused ||
         r.parity.verdict == CheckVerdict::fail;
}

bool is_checked(const Record& r) { return passed(r.parity.verdict); }

// `machines`: a set holds records of several machines, so a row names its machine.
std::string setting_of(const Record& r, bool machines) {
  return machines ? join(setting_text(r), ", ", device_of(r)) : setting_text(r);
}
bool has_machines(const std::vector<Record>& records) {
  // CPU and GPU records are counted apart: a CPU beside a GPU is not a second machine.
  std::string first[2];
  for (const Record& r : records) {
    std::string& seen = first[r.threads > 0];
    if (seen.empty()) seen = device_of(r);
    else if (seen != device_of(r)) return true;
  }
  return false;
}

// Key of the records that are compared with each other.
std::string question(const Record& r, bool machines) {
  return join(r.problem, "\n", r.pattern, "\n", r.subject, "\n", setting_of(r, machines));
}

struct Side {
  std::vector<const Record*> runs{};  // measured records
  const Record* broken = nullptr;     // last record that failed
  const Record* unchecked = nullptr;  // last of `runs` whose result was not checked
  bool right = false;                 // a result in `runs` was checked and correct
  bool too_large = false;             // out of memory: a regression only if it fitted before

  std::vector<Samples> samples() const {
    std::vector<Samples> all;
    for (const Record* r : runs) all.emplace_back(r->samples_ns);
    return all;
  }
  // Empty if a run lacks a clock for any of its samples.
  std::vector<std::vector<double>> cycles() const {
    std::vector<std::vector<double>> all;
    for (const Record* r : runs) {
      if (r->samples_mhz.size() != r->samples_ns.size()) return {};
      std::vector<double>& one = all.emplace_back();
      for (size_t n = 0; n < r->samples_ns.size(); ++n) one.push_back(r->samples_ns[n] * r->samples_mhz[n] * 1e-3);
    }
    return all;
  }
  size_t fewest_samples() const {
    size_t fewest = SIZE_MAX;
    for (const Record* r : runs) fewest = std::min(fewest, r->samples_ns.size());
    return fewest;
  }
  double median_ns() const {
    std::vector<double> all;
    for (const Record* r : runs) all.push_back(median(r->samples_ns));
    return median(all);
  }
  bool has_no_time() const {
    return std::any_of(runs.begin(), runs.end(), [](const Record* r) {
      return std::any_of(r->samples_ns.begin(), r->samples_ns.end(), [](double ns) { return !(ns > 0); });
    });
  }
  // Nothing if no run measured it.
  std::optional<double> aa_spread() const {
    std::vector<double> all;
    for (const Record* r : runs)
      if (r->aa_spread) all.push_back(*r->aa_spread);
    return all.empty() ? std::nullopt : std::optional(median(all));
  }
};

std::vector<Samples> views(const std::vector<std::vector<double>>& all) { return {all.begin(), all.end()}; }
bool is_time(double ns) { return ns > 0 && std::isfinite(ns); }
std::vector<double> medians(const std::vector<Samples>& runs) {
  std::vector<double> all;
  for (const Samples& s : runs) all.push_back(median(s));
  return all;
}

// What the overall verdict is made of.
struct Together {
  std::vector<RowRuns> times{}, cycles{};
  std::vector<double> spreads{};
};

// Distribution of Mann and Whitney's U: the share of all orders with each number of inverted pairs (one run of either
// side), if the sides do not differ.
std::vector<double> wrong_pairs(size_t m, size_t n) {
  std::vector<double> ways(m * n + 1, 0);
  ways[0] = 1;
  double all = 1;
  // The product over i of (1 - x^(n+i)) / (1 - x^i), term by term.
  for (size_t i = 1; i <= m; ++i) {
    for (size_t u = m * n; u >= n + i; --u) ways[u] -= ways[u - n - i];
    for (size_t u = i; u <= m * n; ++u) ways[u] += ways[u - i];
    all *= double(n + i) / double(i);
  }
  for (double& w : ways) w /= all;
  return ways;
}

// Squared uncertainty of a side's mean of logarithms that comes from few samples within its runs.
double within(const std::vector<Samples>& runs) {
  double sum = 0;
  for (const Samples& s : runs) {
    const Interval i = median_interval(s);
    const double half = std::log(i.high / i.low) / 2;
    sum += half * half / double(runs.size() * runs.size());
  }
  return sum;
}

// A busy machine explains a difference better than a change of the code does.
void note_busy(ChangedRow& row, const Side& before, const Side& after) {
  if (row.change == Change::same || !row.note.empty()) return;
  for (const auto& [side, name] : {std::pair(&before, "before"), {&after, "after"}})
    for (const Record* r : side->runs)
      if (const std::string busy = busy_text(*r); !busy.empty()) {
        row.note += join(row.note.empty() ? "" : "; ", "busy ", name, ": ", busy);
        break;
      }
}

// Half of Student's interval of the difference between the sides' mean logarithms.
double students_half(const std::vector<Samples>& before, const std::vector<Samples>& after) {
  double squares = 0;
  for (const auto* runs : {&before, &after}) {
    double mean = 0;
    for (const Samples& s : *runs) mean += std::log(median(s)) / double(runs->size());
    for (const Samples& s : *runs) squares += std::pow(std::log(median(s)) - mean, 2);
  }
  const int freedom = int(before.size() + after.size()) - 2;
  return student_t(freedom) * std::sqrt(squares / freedom * (1 / double(before.size()) + 1 / double(after.size())));
}

ChangedRow row_of(const Record& first, bool machines, const Side& before, const Side& after,
                  const CompareSettings& settings, Together& together) {
  ChangedRow row{.problem = line_text(first), .subject = first.subject, .peer = first.peer,
                 .setting = setting_of(first, machines)};
  row.runs_before = int(before.runs.size()), row.runs_after = int(after.runs.size());
  row.before_ns = before.median_ns(), row.after_ns = after.median_ns();
  if (after.broken) {
    const Record& r = *after.broken;
    row.change = Change::broken;
    row.note = r.parity.verdict == CheckVerdict::fail ? "wrong: " + r.parity.message
                                                      : r.status.text() + ": " + r.message;
  } else if (before.right && after.unchecked) {
    const std::string& why = after.unchecked->parity.message;
    row.change = Change::broken;
    row.note = join("the result was correct before and is not checked now", why.empty() ? "" : ": ", why);
  } else if (after.runs.empty()) {
    row.change = after.too_large ? Change::broken : Change::missing;
    row.note = after.too_large ? "does not fit into memory now" : "measured before but not now";
  } else if (before.runs.empty()) {
    row.change = Change::added;
  } else {
    const std::optional<double> spread = std::max(before.aa_spread(), after.aa_spread());
    row.margin = std::max(settings.margin, spread.value_or(0));
    const auto ratio_of = [](const auto& a, const auto& b, std::vector<RowRuns>& all) {
      const RowRuns runs{medians(a), medians(b), ratio_of_runs(a, b)};
      if (std::all_of(runs.before.begin(), runs.before.end(), is_time) &&
          std::all_of(runs.after.begin(), runs.after.end(), is_time))
        all.push_back(runs);
      return runs.ratio;
    };
    row.ratio = ratio_of(before.samples(), after.samples(), together.times);
    const auto cycles_before = before.cycles(), cycles_after = after.cycles();
    if (!cycles_before.empty() && !cycles_after.empty())
      row.cycles = ratio_of(views(cycles_before), views(cycles_after), together.cycles);
    if (spread) together.spreads.push_back(*spread);
    row.change = judge(row.ratio, row.cycles, settings.margin, spread, row.note);
    const int fewest = int(std::min(before.fewest_samples(), after.fewest_samples()));
    if (before.has_no_time() || after.has_no_time())
      row.change = Change::unclear, row.note = "a sample is not above 0 ns; see attune verify";
    else if (row.change == Change::unclear && !row.ratio.interval.is_sure())
      row.note = fmt::format("{} sample{}: a verdict needs {}", fewest, fewest == 1 ? "" : "s", kFewestSamples);
    note_busy(row, before, after);
  }
  return row;
}

std::vector<std::string> different(const std::vector<Record>& before, const std::vector<Record>& after) {
  std::vector<std::string> all;
  const auto told = [&](const char* what, auto field) {
    const auto values = [&](const std::vector<Record>& records) {
      std::vector<std::string> seen;
      for (const Record& r : records)
        if (const std::string& v = field(r.provenance); std::find(seen.begin(), seen.end(), v) == seen.end())
          seen.push_back(v);
      std::erase(seen, "");
      return seen.empty() ? "none" : fmt::format("{}", fmt::join(seen, ", "));
    };
    const std::string a = values(before), b = values(after);
    if (a != b) all.push_back(fmt::format("the {} differs: {} before, {} after", what, a, b));
  };
  told("CPU", [](const Provenance& p) -> const std::string& { return p.cpu; });
  told("GPU", [](const Provenance& p) -> const std::string& { return p.gpu; });
  told("card", [](const Provenance& p) -> const std::string& { return p.gpu_uuid; });
  told("driver", [](const Provenance& p) -> const std::string& { return p.gpu_driver; });
  told("compiler", [](const Provenance& p) -> const std::string& { return p.compiler; });
  told("peer", [](const Provenance& p) -> const std::string& { return p.peers; });
  return all;
}

// A difference counts only if times and cycles agree.
Change both(const Ratio& time, const Ratio& cycles, Change by_time, Change by_cycles, std::string& why) {
  if (by_time == by_cycles) return by_time;
  const double clock = 100 * (cycles.value > 0 ? time.value / cycles.value - 1 : 0);
  why = fmt::format("{} by time and {} by cycles: the clock was {:.1f} % {}", name(by_time), name(by_cycles),
                    std::abs(clock), clock < 0 ? "lower" : "higher");
  return Change::unclear;
}

Overall overall_of(const Together& together, const CompareSettings& settings) {
  Overall all{.rows = int(together.times.size()), .ratio = overall_ratio(together.times)};
  if (together.cycles.size() == together.times.size()) all.cycles = overall_ratio(together.cycles);
  const std::optional<double> spread =
      together.spreads.empty() ? std::nullopt : std::optional(median(together.spreads));
  const auto seen = [&](const Ratio& r) { return Change(int(overall_verdict(r, settings.margin, spread))); };
  const Change by_time = seen(all.ratio), by_cycles = all.cycles.interval.confidence > 0 ? seen(all.cycles) : by_time;
  all.change = both(all.ratio, all.cycles, by_time, by_cycles, all.note);
  return all;
}

}  // namespace

std::string name(Change c) {
  constexpr const char* kName[] = {"FASTER", "SLOWER", "SAME", "UNCLEAR", "BROKEN", "MISSING", "NEW"};
  return kName[int(c)];
}

bool Changes::only_peers() const {
  return std::none_of(rows.begin(), rows.end(),
                      [](const ChangedRow& r) { return !r.peer && r.change != Change::added; });
}
int Changes::counted() const {
  return int(std::count_if(rows.begin(), rows.end(), [&](const ChangedRow& r) { return counts(r); }));
}
int Changes::count(Change c) const {
  return int(std::count_if(rows.begin(), rows.end(), [&](const ChangedRow& r) { return r.change == c && counts(r); }));
}
int Changes::apart(Change c) const {
  return int(std::count_if(rows.begin(), rows.end(), [&](const ChangedRow& r) { return r.change == c && !counts(r); }));
}
bool Changes::is_regression(const ChangedRow& r, const CompareSettings& s) const {
  if (!counts(r)) return false;
  return r.change == Change::slower || r.change == Change::broken ||
         (r.change == Change::missing && !s.missing_is_fine) || (r.change == Change::unclear && s.strict);
}
int Changes::compared() const { return counted() - count(Change::added) - count(Change::missing); }
bool Changes::told_nothing() const {
  return compared() > 0 && count(Change::unclear) == compared() && overall.change == Change::unclear;
}
int Changes::regressions(const CompareSettings& s) const {
  return int(std::count_if(rows.begin(), rows.end(), [&](const ChangedRow& r) { return is_regression(r, s); }));
}

Agreement agreement(const Changes& changes, double within, const CompareSettings& settings) {
  Agreement a;
  for (const ChangedRow& r : changes.rows) {
    if (settings.missing_is_fine && (r.change == Change::missing || r.change == Change::added)) continue;
    ++a.rows;
    const bool timed = r.change != Change::broken && r.ratio.interval.confidence > 0 && r.ratio.value > 0;
    const double apart = timed ? std::max(r.ratio.value, 1 / r.ratio.value) - 1 : INFINITY;
    if (timed) a.farthest = std::max(a.farthest, apart);
    if (!(apart <= within + 1e-12)) a.apart.push_back({&r, apart});  // so that 102 is within 2 % of 100
  }
  std::stable_sort(a.apart.begin(), a.apart.end(), [](const auto& x, const auto& y) { return x.apart > y.apart; });
  return a;
}

Ratio ratio_of_runs(const std::vector<Samples>& before, const std::vector<Samples>& after) {
  const auto bad = [](const Samples& s) { return s.empty() || !is_time(median(s)); };
  if (before.empty() || after.empty() || std::any_of(before.begin(), before.end(), bad) ||
      std::any_of(after.begin(), after.end(), bad))
    return {};
  if (before.size() == 1 && after.size() == 1) return median_ratio(before[0], after[0]);
  std::vector<double> pairs;
  for (const Samples& b : before)
    for (const Samples& a : after) pairs.push_back(std::log(median(b) / median(a)));
  std::sort(pairs.begin(), pairs.end());
  constexpr size_t kMostRuns = 30;  // per side; beyond, a double cannot count the orders exactly
  const std::vector<double> wrong = wrong_pairs(std::min(before.size(), kMostRuns), std::min(after.size(), kMostRuns));
  size_t cut = 0;
  double outside = 2 * wrong[0];
  while (cut + 1 < pairs.size() / 2 && cut + 1 < wrong.size() && outside + 2 * wrong[cut + 1] <= 0.05)
    outside += 2 * wrong[++cut];
  const double middle = median(pairs), unsure = std::sqrt(within(before) + within(after));
  double low = pairs[cut], high = pairs[pairs.size() - 1 - cut];
  if (1 - outside < kConfidence) {
    const double half = students_half(before, after);
    low = std::min(low, middle - half), high = std::max(high, middle + half);
  }
  return {std::exp(middle),
          {std::exp(std::min(low, middle - unsure)), std::exp(std::max(high, middle + unsure)), kConfidence}};
}

Change judge(const Ratio& time, const Ratio& cycles, double margin, std::optional<double> aa_spread, std::string& why) {
  const auto seen = [&](const Ratio& r) { return Change(int(verdict(r, margin, aa_spread))); };
  const Change by_time = seen(time), by_cycles = cycles.interval.confidence > 0 ? seen(cycles) : by_time;
  if (by_time == Change::unclear && by_cycles == by_time && time.interval.confidence > 0 &&
      aa_spread > std::max(margin, kMostSpread))
    why = fmt::format("the A/A spread is {:.1f} %: no smaller difference can be told", 100 * *aa_spread);
  return both(time, cycles, by_time, by_cycles, why);
}

Changes compare(const std::vector<Record>& before, const std::vector<Record>& after, const CompareSettings& settings) {
  struct Pair { const Record* first; Side before, after; };
  std::vector<std::string> order;
  std::map<std::string, Pair> pairs;
  const bool machines = has_machines(before) || has_machines(after);
  const auto sort_in = [&](const std::vector<Record>& records, Side Pair::*side) {
    for (const Record& r : records) {
      if (r.status == RecordStatus::unsupported || r.status == RecordStatus::interrupted) continue;
      const auto [it, is_new] = pairs.try_emplace(question(r, machines), Pair{&r, {}, {}});
      if (is_new) order.push_back(it->first);
      Side& to = it->second.*side;
      if (is_broken(r)) to.broken = &r;
      else if (r.status == RecordStatus::oom) to.too_large = true;
      else if (is_measured(r)) {
        to.runs.push_back(&r);
        if (is_checked(r)) to.right = true;
        else to.unchecked = &r;
      }
    }
  };
  sort_in(before, &Pair::before);
  sort_in(after, &Pair::after);
  Changes changes;
  Together ours, theirs;
  bool single = false, moved = false;
  std::vector<const Record*> sides[2];
  for (const std::string& key : order) {
    const Pair& p = pairs.at(key);
    const bool nothing = p.before.runs.empty() && p.after.runs.empty() && !p.after.broken;
    if (nothing) continue;
    changes.rows.push_back(row_of(*p.first, machines, p.before, p.after, settings, p.first->peer ? theirs : ours));
    const Change change = changes.rows.back().change;
    moved = moved || (!p.first->peer && (change == Change::faster || change == Change::slower));
    if (!p.before.runs.empty() && !p.after.runs.empty()) {  // of rows that only one side has nothing can be told
      sides[0].insert(sides[0].end(), p.before.runs.begin(), p.before.runs.end());
      sides[1].insert(sides[1].end(), p.after.runs.begin(), p.after.runs.end());
    }
    single = single || (p.before.runs.size() == 1 && p.after.runs.size() == 1);
  }
  changes.overall = overall_of(changes.only_peers() ? theirs : ours, settings);
  const Change all = changes.overall.change;
  moved = moved || (!changes.only_peers() && (all == Change::faster || all == Change::slower));
  changes.caveats = machine_changes(sides[0], sides[1], moved);
  for (std::string& s : different(before, after)) changes.caveats.push_back(std::move(s));
  if (single)
    changes.caveats.push_back("one run per side: the intervals do not include differences between processes; alternate "
                              "five runs of each to include them");
  return changes;
}

}  // namespace attune
