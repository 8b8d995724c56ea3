// SPDX-License-Identifier: Apache-2.0
// Samples that were taken over from another record: all or most of them from three on, all scaled or shifted from
// six on, all nudged from ten on. Two honest records may share values, because clocks have ticks: a GPU's events are
// multiples of 32 ns. So a likeness counts only if chance would produce it in less than one of ten million pairs.
#include <numeric>

#include "tool/check/parts.h"

namespace attune {
namespace {

constexpr double kChance = 7;          // -log10 of the probability of a likeness by chance
constexpr double kNudge = 1e-5;        // 1 - r^2, at most: a nudge of a third of a percent of the spread
constexpr double kContinuous = 1000;   // ticks in the range of the samples from which they count as continuous
constexpr double kMostSteps = 2e9;     // comparisons of samples; beyond them only near records are compared
constexpr size_t kNear = 16;

struct Samples {
  const Line* line = nullptr;
  std::vector<double> sorted{};
  std::vector<size_t> order{};         // where the smallest stands, then the next
  double gap = 0;                      // least difference of two samples of a call, times the calls
  double range() const { return sorted.back() - sorted.front(); }
  // Distance of a sample from the middle of the interquartile range, in such ranges.
  double position(double ns) const {
    const size_t n = sorted.size();
    const double low = sorted[n / 4], high = sorted[n - 1 - n / 4];
    return high > low ? (ns - (low + high) / 2) / (high - low) : 0;
  }
  const std::vector<double>& all() const { return line->record.samples_ns; }
};

Samples samples_of(const Line& l) {
  Samples s{.line = &l, .sorted = l.record.samples_ns, .gap = INFINITY};
  std::sort(s.sorted.begin(), s.sorted.end());
  s.order.resize(s.sorted.size());
  std::iota(s.order.begin(), s.order.end(), size_t(0));
  std::stable_sort(s.order.begin(), s.order.end(), [&](size_t m, size_t n) { return s.all()[m] < s.all()[n]; });
  for (size_t n = 1; n < s.sorted.size(); ++n)
    if (const double d = s.sorted[n] - s.sorted[n - 1]; d > 0) s.gap = std::min(s.gap, d * l.record.calls);
  return s;
}

// log10 of the number of ways to order these values.
double orders(const std::vector<double>& sorted) {
  double all = std::lgamma(double(sorted.size()) + 1);
  for (size_t n = 0; n < sorted.size();) {
    const size_t end = size_t(std::upper_bound(sorted.begin(), sorted.end(), sorted[n]) - sorted.begin());
    all -= std::lgamma(double(end - n) + 1), n = end;
  }
  return all / std::log(10.0);
}

struct Comparison {
  const Samples &a, &b;
  double tick;    // of the clock, per call
  double& steps;

  double levels() const { return 1 + std::max(a.range(), b.range()) / tick; }

  bool are_same() const {
    if (a.sorted.size() != b.sorted.size() || a.sorted.front() != b.sorted.front()) return false;
    steps += double(a.all().size());
    return a.all() == b.all() && double(a.all().size()) * std::log10(levels()) >= kChance;
  }

  // Counts the values that both have. Of m and n values on so many levels, about m n / levels agree by chance; four
  // times as many, because they are denser in the middle.
  bool is_most() const {
    if (a.sorted.back() < b.sorted.front() || b.sorted.back() < a.sorted.front()) return false;
    const size_t least = std::min(a.sorted.size(), b.sorted.size());
    size_t found = 0;
    steps += double(a.sorted.size() + b.sorted.size());
    for (size_t m = 0, n = 0; m < a.sorted.size() && n < b.sorted.size();) {
      if (a.sorted[m] == b.sorted[n]) ++found, ++m, ++n;
      else a.sorted[m] < b.sorted[n] ? ++m : ++n;
    }
    if (found < 3 || 2 * found < least) return false;
    const double by_chance = 4 * double(a.sorted.size()) * double(b.sorted.size()) / levels();
    const double k = double(found);
    return by_chance < k && k * std::log10(k / (by_chance * std::exp(1.0))) >= kChance;
  }

  // Whether one is the other times a factor plus an offset, to the last digit: the gaps between samples, in order of
  // size, have one ratio. One gap gives the ratio, and another one may be of a slow sample that all subjects have.
  bool are_scaled() const {
    if (a.order.size() < 6 || a.order != b.order || !(a.range() > 0)) return false;
    const double factor = b.range() / a.range();
    std::vector<double> clear;
    steps += double(a.order.size());
    for (size_t n = 1; n < a.sorted.size(); ++n) {
      const double here = factor * (a.sorted[n] - a.sorted[n - 1]), there = b.sorted[n] - b.sorted[n - 1];
      if (std::abs(here - there) > 0.11 * (1 + factor)) return false;
      clear.push_back(std::log10(std::max(1.0, there / (std::max(tick, 0.1) * (1 + factor)))));
    }
    std::sort(clear.begin(), clear.end());
    clear.resize(clear.size() - 2);
    const double same_order = std::lgamma(double(a.order.size()) - 1) / std::log(10.0);
    return std::accumulate(clear.begin(), clear.end(), same_order) >= kChance;
  }

  static double near_middle(double position) { return std::clamp(position, -4.0, 4.0); }

  // The same up to a nudge of every sample. Only the 70 % that lie nearest to the medians of both count.
  bool are_nudged() const {
    const std::vector<double>&x = a.all(), &y = b.all();
    if (x.size() != y.size() || x.size() < 10) return false;
    for (const size_t n : {size_t(0), x.size() / 2, x.size() - 1})
      if (std::abs(near_middle(a.position(x[n])) - near_middle(b.position(y[n]))) > 0.5) return false;  // most pairs
    steps += 20 * double(x.size());
    std::vector<std::pair<double, size_t>> by_distance(x.size());
    for (size_t n = 0; n < x.size(); ++n)
      by_distance[n] = {std::max(std::abs(a.position(x[n])), std::abs(b.position(y[n]))), n};
    const size_t kept = x.size() * 7 / 10;
    std::nth_element(by_distance.begin(), by_distance.begin() + long(kept), by_distance.end());
    std::vector<double> xs, ys;
    for (size_t n = 0; n < kept; ++n) xs.push_back(x[by_distance[n].second]), ys.push_back(y[by_distance[n].second]);
    const double mx = std::accumulate(xs.begin(), xs.end(), 0.0) / double(kept);
    const double my = std::accumulate(ys.begin(), ys.end(), 0.0) / double(kept);
    double xx = 0, yy = 0, xy = 0;
    for (size_t n = 0; n < kept; ++n)
      xx += (xs[n] - mx) * (xs[n] - mx), yy += (ys[n] - my) * (ys[n] - my), xy += (xs[n] - mx) * (ys[n] - my);
    if (!(xx > 0 && yy > 0) || xy <= 0 || 1 - xy * xy / (xx * yy) > kNudge) return false;
    std::sort(xs.begin(), xs.end()), std::sort(ys.begin(), ys.end());
    const double levels = std::min(xs.back() - xs.front(), ys.back() - ys.front()) / tick;
    return levels >= kContinuous || std::min(orders(xs), orders(ys)) >= kChance;
  }
};

}  // namespace

void audit_copies(std::span<const Line> lines, std::vector<Finding>& found) {
  std::vector<Samples> all;
  double tick[2] = {INFINITY, INFINITY};  // of CPUs and of GPUs: the least that any record shows
  for (const Line& l : lines) {
    const std::vector<double>& s = l.record.samples_ns;
    if (s.size() < 3 || l.record.calls < 1) continue;
    if (std::any_of(s.begin(), s.end(), [](double ns) { return !(ns > 0); })) continue;
    if (std::all_of(s.begin(), s.end(), [&](double ns) { return ns == s[0]; })) continue;
    all.push_back(samples_of(l));
    double& least = tick[is_gpu(l.record)];
    least = std::min(least, all.back().gap);
  }
  double steps = 0;
  for (size_t n = 1; n < all.size(); ++n) {
    const size_t first = steps < kMostSteps || n < kNear ? 0 : n - kNear;
    const Record& r = all[n].line->record;
    const Reporter a{*all[n].line, r, found};
    steps += double(n - first);
    for (size_t m = first; m < n; ++m) {
      const Comparison pair{all[m], all[n], tick[is_gpu(r)] / std::max(r.calls, all[m].line->record.calls), steps};
      const char* const what = pair.are_same()     ? "the samples are those of line "
                               : pair.is_most()    ? "most of the samples are those of line "
                               : pair.are_scaled() ? "scaled or shifted, the samples are those of line "
                               : pair.are_nudged() ? "but for a nudge, the samples are those of line "
                                                   : nullptr;
      if (!what) continue;
      a.wrong("copied-samples", what, all[m].line->number);
      break;
    }
  }
}

}  // namespace attune
