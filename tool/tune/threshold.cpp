// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/threshold.h"

#include <algorithm>
#include <cmath>

#include "tool/timing/statistics.h"

namespace attune {
namespace {

// True if `a` is faster by more than the A/A spread and by more than the intervals. A spread counts only up to
// kMostSpread, as in --check: a run with a spread of 9.4 % at its first row kept a backend that was 9.0 % slower, with
// intervals of 0.5 %.
bool beats(const CurvePoint& a, const CurvePoint& b, double spread) {
  const double gain = b.log_time - a.log_time;
  return gain > std::log1p(std::min(spread, kMostSpread)) && gain > std::hypot(a.half, b.half);
}

}  // namespace

std::optional<int> threshold(const Curves& c, size_t backend, const TuneSettings& s) {
  const Curve& curve = c.backends[backend];
  std::optional<int> from;
  size_t say_so = 0;  // number of lengths in favour
  for (size_t n = c.lengths.size(); n-- > 0;) {
    // If the baseline cannot run, a backend is in use because it is the only one, not because of its speed.
    const bool in_use = n < c.used.size() && c.used[n] == curve.backend && c.backends[c.baseline].points[n].measured;
    const CurvePoint& p = curve.points[n];
    const double needed = 1 + s.margin - (in_use ? s.hysteresis : 0);
    if (!p.measured || p.low < needed) break;
    if (!std::isnan(p.low)) from = c.lengths[n], say_so += std::isinf(p.low) ? 2 : 1;
  }
  // A single length at the end of the range may be an accident and would decide for everything longer. A baseline that
  // does not fit into memory there is not an accident.
  return say_so >= std::min<size_t>(2, c.lengths.size()) ? from : std::nullopt;
}

TuneChoice choose(const Curves& c, const TuneSettings& s) {
  TuneChoice choice;
  for (size_t b = 0; b < c.backends.size(); ++b)
    choice.from.push_back(b == c.baseline ? std::nullopt : threshold(c, b, s));
  choice.at.assign(c.lengths.size(), c.baseline);
  std::optional<size_t> longer;  // choice of the next longer length
  for (size_t n = c.lengths.size(); n-- > 0;) {
    const auto may = [&](size_t b) { return choice.from[b] && *choice.from[b] <= c.lengths[n]; };
    std::optional<size_t> best;
    for (size_t b = 0; b < c.backends.size(); ++b)
      if (may(b) && n < c.used.size() && c.used[n] == c.backends[b].backend) best = b;
    if (!best && longer && may(*longer)) best = longer;
    for (size_t b = 0; b < c.backends.size(); ++b) {
      if (!may(b)) continue;
      const double spread = n < c.spread.size() ? c.spread[n] : 0;
      if (!best || beats(c.backends[b].points[n], c.backends[*best].points[n], spread)) best = b;
    }
    // If nothing may be used: the baseline, or the first backend that can run if the baseline cannot.
    if (!best) {
      best = c.baseline;
      for (size_t b = c.backends.size(); b-- > 0;)
        if (!c.backends[c.baseline].points[n].measured && c.backends[b].points[n].measured) best = b;
    }
    choice.at[n] = *best;
    longer = best;
  }
  return choice;
}

double change_cost() { return std::log1p(kMostSpread); }

std::vector<size_t> choose_by_work(const Curves& c, const std::vector<bool>& may) {
  const size_t works = c.works.size(), backends = c.backends.size();
  const double cost = change_cost();
  const auto in_use = [&](size_t n, size_t b) { return n < c.used.size() && c.used[n] == c.backends[b].backend; };
  // Dynamic programming: the least cost of a path that ends in each backend at a work, and its predecessor.
  std::vector<double> least(backends, 0);
  std::vector<std::vector<size_t>> from(works, std::vector<size_t>(backends, c.baseline));
  for (size_t n = 0; n < works; ++n) {
    std::vector<double> next(backends, INFINITY);
    for (size_t b = 0; b < backends; ++b) {
      if (!may[b]) continue;
      const CurvePoint& p = c.backends[b].points[n];
      for (size_t a = 0; a < backends; ++a) {
        if (!may[a]) continue;
        const bool is_new = n && a != b && !(in_use(n - 1, a) && in_use(n, b));
        const double change = is_new ? std::max(cost, std::hypot(p.half, c.backends[a].points[n].half)) : 0;
        if (least[a] + change < next[b]) next[b] = least[a] + change, from[n][b] = a;
      }
      next[b] += p.log_time + (in_use(n, b) ? 0 : cost);  // a backend in use stays until another is clearly faster
    }
    least = next;
  }
  std::vector<size_t> at(works, c.baseline);
  size_t b = c.baseline;
  for (size_t other = 0; other < backends; ++other)
    if (may[other] && (!may[b] || least[other] < least[b])) b = other;
  for (size_t n = works; n-- > 0; b = from[n][b]) at[n] = b;
  return at;
}

}  // namespace attune
