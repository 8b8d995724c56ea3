// SPDX-License-Identifier: Apache-2.0
#include "tool/history/trend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "tool/record/busy.h"
#include "tool/record/store.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kMargin = 0.01;
constexpr int kOrders = 2000;
constexpr size_t kShortest = 2;   // runs of a level
constexpr size_t kMostRuns = 200;  // older ones are shown, but not looked through

// Logarithms around their mean. What is farther from the median than four deviations, by the median distance, is drawn
// in, so that one slow night weighs no more than one run of another level.
std::vector<double> centred(std::span<const double> values) {
  std::vector<double> logs, distances;
  for (const double v : values) logs.push_back(std::log(v));
  const double middle = median(logs);
  for (const double x : logs) distances.push_back(std::abs(x - middle));
  const double unit = 1.4826 * median(distances), most = 4 * (unit > 0 ? unit : mean(distances));
  for (double& x : logs) x = std::clamp(x, middle - most, middle + most);
  const double centre = mean(logs);
  for (double& x : logs) x -= centre;
  return logs;
}

// The runs [first, end) that differ most from the others, in units of the deviation of their sum.
struct Largest { size_t first = 0, end = 0; double distance = 0; };

// The largest change that lasts from one run to the last.
Largest largest_tail(const std::vector<double>& values) {
  Largest best;
  double sum = 0;
  for (size_t first = values.size(), rest; first-- > kShortest;) {
    sum += values[first], rest = values.size() - first;
    const double distance = std::abs(sum) / std::sqrt(double(rest) * double(first));
    if (rest >= kShortest && distance > best.distance) best = {first, values.size(), distance};
  }
  return best;
}

// The largest change that begins and ends, with other runs before and after it.
Largest largest_stretch(const std::vector<double>& values) {
  Largest best;
  const size_t count = values.size();
  for (size_t first = kShortest; first + 2 * kShortest <= count; ++first) {
    double sum = 0;
    for (size_t end = first + 1; end + kShortest <= count; ++end) {
      sum += values[end - 1];
      const double length = double(end - first);
      const double distance = std::abs(sum) / std::sqrt(length * (double(count) - length));
      if (length >= kShortest && distance > best.distance) best = {first, end, distance};
    }
  }
  return best;
}

// The share of orders of the same values in which `largest` finds a distance as large.
double chance_of(double distance, std::vector<double> values, Largest (*largest)(const std::vector<double>&)) {
  std::mt19937_64 random(1);
  int as_large = 1;  // the order as it is
  for (int n = 1; n < kOrders; ++n) {
    for (size_t end = values.size() - 1; end > 0; --end) std::swap(values[end], values[random() % (end + 1)]);
    as_large += largest(values).distance >= distance * (1 - 1e-9);
    if (as_large > kMostChance * kOrders) return 1;
  }
  return double(as_large) / kOrders;
}

// Two levels, or one that came and went.
void add_splits(std::span<const double> values, size_t first, double margin, std::vector<Split>& out) {
  if (values.size() < 2 * kShortest) return;
  const std::vector<double> at = centred(values);
  for (const auto largest : {largest_tail, largest_stretch}) {
    const Largest best = largest(at);
    if (!(best.distance > 0)) continue;
    std::vector<double> others(values.begin(), values.begin() + std::ptrdiff_t(best.first));
    others.insert(others.end(), values.begin() + std::ptrdiff_t(best.end), values.end());
    const double ratio = median(others) / median(values.subspan(best.first, best.end - best.first));
    if (!(std::max(ratio, 1 / ratio) > 1 + margin)) continue;
    const double chance = chance_of(best.distance, at, largest);
    if (chance > kMostChance) continue;
    add_splits(values.first(best.first), first, margin, out);
    out.push_back({first + best.first, chance});
    add_splits(values.subspan(best.first, best.end - best.first), first + best.first, margin, out);
    if (best.end == values.size()) return;
    out.push_back({first + best.end, chance});
    return add_splits(values.subspan(best.end), first + best.end, margin, out);
  }
}

// Like in a step, a difference below the A/A spread is not claimed; of several runs, their median spread counts.
double margin_of(const std::vector<const Record*>& points) {
  std::vector<double> spreads;
  for (const Record* r : points)
    if (r->aa_spread) spreads.push_back(*r->aa_spread);
  return std::max(kMargin, std::min(median(spreads), kMostSpread));
}

void find_changes(Trend& trend) {
  std::vector<double> medians;
  for (const Record* r : trend.points) medians.push_back(r->median_ns);
  const std::vector<Split> all = splits(medians, margin_of(trend.points));
  const std::span<const double> values(medians);
  for (size_t n = 0; n < all.size(); ++n) {
    const size_t first = n ? all[n - 1].at : 0, at = all[n].at;
    const size_t end = n + 1 < all.size() ? all[n + 1].at : values.size();
    ChangePoint change{.at = at, .before_ns = median(values.subspan(first, at - first)),
                       .after_ns = median(values.subspan(at, end - at)), .chance = all[n].chance};
    change.ratio = change.before_ns / change.after_ns;
    const Record* const before = trend.points[at - 1], * const after = trend.points[at];
    change.machine = machine_changes({before}, {after}, !after->peer);
    trend.changes.push_back(std::move(change));
  }
}

}  // namespace

RunStep run_step(const Record& before, const Record& after) {
  RunStep s{.ratio = median_ratio(before.samples_ns, after.samples_ns)};
  s.speed = verdict(s.ratio, kMargin, std::max(before.aa_spread, after.aa_spread));
  const bool moved = !after.peer && (s.speed == Speed::faster || s.speed == Speed::slower);
  s.machine = machine_changes({&before}, {&after}, moved);
  return s;
}

std::vector<Split> splits(std::span<const double> values, double margin) {
  std::vector<Split> all;
  const size_t older = values.size() - std::min(values.size(), kMostRuns);
  add_splits(values.subspan(older), older, margin, all);
  return all;
}

std::vector<Trend> trends_of(const std::vector<Record>& records) {
  std::vector<Trend> trends;
  std::map<std::string, size_t> places;
  for (const Record& r : records) {
    if (r.status != RecordStatus::ok || r.samples_ns.empty()) continue;
    const auto [place, is_new] = places.emplace(trend_key(r), trends.size());
    if (is_new) trends.emplace_back();
    trends[place->second].points.push_back(&r);
  }
  for (Trend& t : trends) find_changes(t);
  return trends;
}

std::string heading(const Record& r) {
  const std::string& card = r.provenance.gpu_uuid;
  return join(line_text(r), " | ", r.subject, " | ", device_of(r), card.empty() ? "" : ", ", card, " | ",
              setting_text(r));
}

std::string sentence(const Trend& trend, const ChangePoint& c) {
  const Provenance& p = trend.points[c.at]->provenance;
  return fmt::format("{} from {:.10} ({}) on: {} -> {}, {}, chance {} %", c.is_slower() ? "SLOWER" : "FASTER", p.commit,
                     p.time, seconds_text(c.before_ns * 1e-9), seconds_text(c.after_ns * 1e-9), factor_text(c.ratio),
                     without_zeros(digits_text(100 * c.chance)));
}

}  // namespace attune
