// Samples that were taken over from another record: all of them, most of them, or all of them scaled, shifted or
// nudged. Two honest records may share values, because clocks have ticks: a GPU's events are multiples of 32 ns. So a
// likeness counts only if chance would produce it in less than one of ten million pairs.
#include <map>
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
  double gap = 0;                      // least difference of two samples of a call, times the calls
  double range() const { return sorted.back() - sorted.front(); }
  const std::vector<double>& all() const { return line->record.samples_ns; }
};

Samples samples_of(const Line& l) {
  Samples s{.line = &l, .sorted = l.record.samples_ns, .gap = INFINITY};
  std::sort(s.sorted.begin(), s.sorted.end());
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

  // Whether one is the other times a factor plus an offset, but for a nudge. Severe outliers do not count: a slow first
  // sample in both would hide that the others differ.
  bool are_alike() const {
    const std::vector<double>&x = a.all(), &y = b.all();
    if (x.size() != y.size() || x.size() < 4) return false;
    const auto fences = [](const std::vector<double>& s) {
      const double q1 = quantile(s, 0.25), q3 = quantile(s, 0.75);
      return std::pair(q1 - 3 * (q3 - q1), q3 + 3 * (q3 - q1));
    };
    if (std::abs(position(x, a) - position(y, b)) > 0.5) return false;  // most pairs end here
    steps += 4 * double(x.size());
    const auto [x_low, x_high] = fences(a.sorted);
    const auto [y_low, y_high] = fences(b.sorted);
    double n = 0, sx = 0, sy = 0;
    const auto is_in = [&](size_t i) {
      return x[i] >= x_low && x[i] <= x_high && y[i] >= y_low && y[i] <= y_high;
    };
    for (size_t i = 0; i < x.size(); ++i)
      if (is_in(i)) n += 1, sx += x[i], sy += y[i];
    if (n < 4 || 2 * n < double(x.size())) return false;
    double xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < x.size(); ++i)
      if (is_in(i)) {
        const double dx = x[i] - sx / n, dy = y[i] - sy / n;
        xx += dx * dx, yy += dy * dy, xy += dx * dy;
      }
    if (!(xx > 0 && yy > 0) || xy <= 0) return false;
    const double apart = std::max(0.0, 1 - xy * xy / (xx * yy));
    if (apart > kNudge) return false;
    // For n independent values, 1 - r^2 is below e with a probability of about e^((n - 2) / 2).
    if (levels() >= kContinuous) return -std::log10(std::max(apart, 1e-12)) * (n - 2) / 2 >= kChance;
    return std::min(orders(a.sorted), orders(b.sorted)) >= kChance;
  }

  // Where the first sample lies in the range of the middle half.
  static double position(const std::vector<double>& all, const Samples& s) {
    const size_t n = s.sorted.size();
    const double low = s.sorted[n / 4], high = s.sorted[n - 1 - n / 4];
    return high > low ? std::clamp((all[0] - low) / (high - low), -3.0, 4.0) : 0;
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
      const char* const what = pair.are_same()    ? "the samples are those of line "
                               : pair.is_most()   ? "most of the samples are those of line "
                               : pair.are_alike() ? "scaled or shifted, the samples are those of line "
                                                  : nullptr;
      if (!what) continue;
      a.wrong("copied-samples", what, all[m].line->number);
      break;
    }
  }
}

}  // namespace attune
