// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/statistics.h"

#include <algorithm>
#include <cmath>

namespace attune {
namespace {

std::vector<double> sorted(std::span<const double> x) {
  std::vector<double> s(x.begin(), x.end());
  std::sort(s.begin(), s.end());
  return s;
}

double quantile_of_sorted(const std::vector<double>& s, double share) {
  if (s.empty()) return 0;
  const double at = share * double(s.size() - 1);
  const size_t below = size_t(at), above = std::min(below + 1, s.size() - 1);
  return s[below] + (at - double(below)) * (s[above] - s[below]);
}

// P(X = k) for n fair coins.
double binomial(int n, int k) {
  return std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) - n * std::log(2.0));
}

struct SplitMix {  // Steele et al. 2014; small, and the same on every machine, unlike the distributions of <random>
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  size_t below(size_t n) { return size_t((next() >> 32) * n >> 32); }
};

double resampled_median(std::span<const double> x, std::vector<double>& room, SplitMix& random) {
  room.resize(x.size());
  for (double& r : room) r = x[random.below(x.size())];
  const auto middle = room.begin() + std::ptrdiff_t(room.size() / 2);
  std::nth_element(room.begin(), middle, room.end());
  if (room.size() % 2) return *middle;
  return (*middle + *std::max_element(room.begin(), middle)) / 2;
}

// The grain of the timer: the smallest step between readings where many are equal, else 0. If neither side has two
// different readings, the step between the sides is one, unless it is too large for that.
double grain(std::span<const double> a, std::span<const double> b) {
  constexpr double kMostEqual = 0.02;
  double least = INFINITY;
  size_t distinct = 0;
  for (const auto& side : {a, b}) {
    const std::vector<double> s = sorted(side);
    ++distinct;
    for (size_t n = 1; n < s.size(); ++n)
      if (s[n] > s[n - 1]) least = std::min(least, s[n] - s[n - 1]), ++distinct;
  }
  if (3 * distinct > 2 * (a.size() + b.size())) return 0;
  if (std::isfinite(least)) return least;
  const double step = std::abs(a[0] - b[0]);
  return step <= kMostEqual * std::min(a[0], b[0]) ? step : 0;
}

}  // namespace

double mean(std::span<const double> all) {
  double sum = 0;
  for (const double x : all) sum += x;
  return all.empty() ? 0 : sum / double(all.size());
}
double deviation(std::span<const double> all) {
  const double middle = mean(all);
  double sum = 0;
  for (const double x : all) sum += (x - middle) * (x - middle);
  return all.size() < 2 ? 0 : std::sqrt(sum / double(all.size() - 1));
}
double quantile(std::span<const double> x, double share) { return quantile_of_sorted(sorted(x), share); }
double median(std::span<const double> x) { return quantile(x, 0.5); }

Interval median_interval(std::span<const double> x, double confidence) {
  const std::vector<double> s = sorted(x);
  const int n = int(s.size());
  if (n == 0) return {};
  // The median lies outside [s[r], s[n-1-r]] only if at most r samples fell on one side of it.
  int r = 0;
  double outside = binomial(n, 0);  // one side
  if (n <= 1000) {
    for (double next = outside; r + 1 < (n + 1) / 2; outside = next, ++r)
      if (next = outside + binomial(n, r + 1); 1 - 2 * next < confidence) break;
  } else {
    // Normal approximation of the binomial; 1.96 at 95 %. Bisection of erf is exact enough for any confidence.
    double lo = 0, hi = 10;
    for (int step = 0; step < 60; ++step)
      (std::erf((lo + hi) / 2 / std::sqrt(2.0)) < confidence ? lo : hi) = (lo + hi) / 2;
    r = std::max(0, int(std::floor(n / 2.0 - lo * std::sqrt(double(n)) / 2)) - 1);
  }
  const double covered = n <= 1000 ? std::max(0.0, 1 - 2 * outside) : confidence;
  return {s[size_t(r)], s[size_t(n - 1 - r)], covered};
}

double half_width(const Interval& i, double median) { return median > 0 ? (i.high - i.low) / 2 / median : 0; }

Ratio median_ratio(std::span<const double> a, std::span<const double> b) {
  const double top = median(a), bottom = median(b);
  if (a.empty() || b.empty() || !(top > 0) || !(bottom > 0)) return {};
  Interval ia = median_interval(a), ib = median_interval(b);
  // A reading lies up to half a grain beside the time it stands for, however many samples agree.
  const double half_grain = grain(a, b) / 2;
  for (Interval* i : {&ia, &ib}) i->low = std::max(i->low - half_grain, 0.0), i->high += half_grain;
  const auto apart = [](double x, double y) { return std::log(x) - std::log(y); };
  const double value = top / bottom, confidence = std::min(ia.confidence, ib.confidence);
  const double below = std::hypot(apart(top, ia.low), apart(ib.high, bottom));
  const double above = std::hypot(apart(ia.high, top), apart(bottom, ib.low));
  return {value, {value * std::exp(-below), value * std::exp(above), confidence}};
}

Ratio resampled_ratio(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty() || median(a) <= 0 || median(b) <= 0) return {};
  Ratio r{.value = median(a) / median(b)};
  constexpr int kResamples = 1000;
  SplitMix random{1};
  std::vector<double> ratios, room;
  ratios.reserve(kResamples);
  for (int n = 0; n < kResamples; ++n) {
    const double top = resampled_median(a, room, random);
    ratios.push_back(top / resampled_median(b, room, random));
  }
  std::sort(ratios.begin(), ratios.end());
  r.interval = {quantile_of_sorted(ratios, 0.025), quantile_of_sorted(ratios, 0.975), 0.95};
  // With very few samples the bootstrap repeats itself too often: the extremes then bound the ratio, at their coverage.
  const Interval ia = median_interval(a), ib = median_interval(b);
  if (std::min(ia.confidence, ib.confidence) < 0.95)
    r.interval = {ia.low / ib.high, ia.high / ib.low, std::min(ia.confidence, ib.confidence)};
  return r;
}

Outliers outliers(std::span<const double> x) {
  Outliers o;
  if (x.size() < 4) return o;
  const std::vector<double> s = sorted(x);
  const double q1 = quantile_of_sorted(s, 0.25), q3 = quantile_of_sorted(s, 0.75), range = q3 - q1;
  for (const double v : s) {
    if (v < q1 - 3 * range) ++o.low_severe;
    else if (v < q1 - 1.5 * range) ++o.low_mild;
    else if (v > q3 + 3 * range) ++o.high_severe;
    else if (v > q3 + 1.5 * range) ++o.high_mild;
  }
  return o;
}

int modes(std::span<const double> x) {
  if (x.size() < 15) return 1;
  std::vector<double> s = sorted(x);
  if (constexpr size_t kEnough = 1000; s.size() > kEnough) {  // the density costs samples x points
    for (size_t i = 0; i < kEnough; ++i) s[i] = s[i * s.size() / kEnough];
    s.resize(kEnough);
  }
  const double n = double(s.size());
  double mean = 0, square = 0;
  for (const double v : s) mean += v / n;
  for (const double v : s) square += (v - mean) * (v - mean) / n;
  const double range = (quantile_of_sorted(s, 0.75) - quantile_of_sorted(s, 0.25)) / 1.34;
  // Silverman's rule, from the narrower of the two widths unless more than half of the samples are equal.
  const double width = range > 0 ? std::min(std::sqrt(square), range) : std::sqrt(square);
  // Differences far below the median are the timer's resolution, not a second mode.
  const double band = std::max(0.9 * width * std::pow(n, -0.2), 0.005 * std::abs(quantile_of_sorted(s, 0.5)));
  if (!(band > 0)) return 1;

  constexpr int kPoints = 256;
  const double first = s.front() - 3 * band, step = (s.back() - s.front() + 6 * band) / (kPoints - 1);
  // Far outliers would stretch the grid until it misses peaks; the grid is then made of the samples themselves.
  std::vector<double> grid, density;
  if (step < band / 2) for (int i = 0; i < kPoints; ++i) grid.push_back(first + i * step);
  else for (const double v : s) grid.insert(grid.end(), {v - band, v, v + band});
  std::sort(grid.begin(), grid.end());
  for (const double at : grid) {
    double d = 0;
    for (const double v : s) d += std::exp(-0.5 * (at - v) / band * ((at - v) / band));
    density.push_back(d);
  }
  const double top = *std::max_element(density.begin(), density.end());
  // A peak counts if it reaches a fifth of the highest one and a valley below 0.6 of it precedes the next peak.
  int peaks = 0;
  bool on_peak = false;
  double peak = 0, valley = 0;
  for (const double d : density) {
    if (on_peak) {
      peak = std::max(peak, d);
      if (d < 0.6 * peak) on_peak = false, valley = d;
    } else {
      valley = std::min(valley, d);
      if (d >= 0.2 * top && valley < 0.6 * d) on_peak = true, peak = d, ++peaks;
    }
  }
  return std::max(peaks, 1);
}

bool settled(std::span<const double> x, double within) {
  // A quarter of all samples: the slower the start-up effects fade, the longer the windows must be to show it.
  const size_t window = std::max<size_t>(10, x.size() / 4);
  if (x.size() < 2 * window) return false;
  const double late = median(x.last(window)), early = median(x.subspan(x.size() - 2 * window, window));
  return std::abs(late - early) <= within * std::max(late, early);
}

std::string name(Speed v) {
  constexpr const char* kName[] = {"FASTER", "SLOWER", "SAME", "UNCLEAR"};
  return kName[int(v)];
}

Speed verdict(const Ratio& r, double margin, std::optional<double> aa_spread, double least_confidence) {
  const double aa = aa_spread.value_or(0);
  const double claimed = 1 + std::max(margin, aa), same = 1 + std::max(margin, std::min(aa, kMostSpread));
  if (!(r.interval.confidence > 0) || r.interval.confidence < least_confidence - 1e-9) return Speed::unclear;
  if (r.interval.low >= claimed) return Speed::faster;
  if (r.interval.high <= 1 / claimed) return Speed::slower;
  return r.interval.low > 1 / same && r.interval.high < same ? Speed::same : Speed::unclear;
}

double spread(const Ratio& r) {
  const double low = std::min(r.value, r.interval.low), high = std::max(r.value, r.interval.high);
  return std::max(high - 1, low > 0 ? 1 / low - 1 : 0.0);
}

bool enqueue_only(double run_ns, double drain_ns) { return drain_ns > 0.1 * (run_ns + drain_ns) && drain_ns > 5000; }

}  // namespace attune
