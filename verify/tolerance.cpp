#include "verify/tolerance.h"

#include <algorithm>
#include <cmath>

namespace attune {
namespace {

constexpr double kTimes = 3, kRoundings = 2, kWorkRoundings = 8, kOfWeights = 1. / 16;

// Largest rounding error of a format at this size: f16 and e4m3 have a smallest step that is soon reached.
double rounding(DType t, double size) {
  const double half_step = t == DType::f16 ? 0x1p-25 : t == DType::e4m3 ? 0x1p-10 : 0;
  return std::max(rounding_of(t) * size, half_step);
}

struct Sums {
  double max = 0, mean = 0, square = 0;
  int64_t worst = -1;
};

// Sums f(n) over all elements; propagates NaN.
template <class F>
Sums sums(size_t count, F f) {
  Sums s;
  for (size_t n = 0; n < count; ++n) {
    const double x = std::fabs(f(n));
    if (!(x <= s.max) && !std::isnan(s.max)) s.max = x, s.worst = int64_t(n);
    s.mean += x, s.square += x * x;
  }
  if (count) s.mean /= double(count);
  return s;
}

double error(double want, double got) { return want == got ? 0 : std::isfinite(want) ? got - want : NAN; }

}  // namespace

std::string name(Verdict v) {
  switch (v) {
    case Verdict::pass: return "PASS";
    case Verdict::pass_at_floor: return "PASS-AT-FLOOR";
    case Verdict::empty: return "EMPTY";
    default: return "FAIL";
  }
}

void Golden::shake(const std::vector<double>& naive) {
  const Sums s = sums(values.size(), [&](size_t n) { return error(values[n], naive[n]); });
  naive_max = std::max(naive_max, s.max), naive_mean = std::max(naive_mean, s.mean);
}

Judged judge(const Golden& golden, const std::vector<double>& got, const Yardstick& by) {
  const std::vector<double>& want = golden.values;
  const Sums size = sums(want.size(), [&](size_t n) { return std::isfinite(want[n]) ? want[n] : 0; });
  const Sums strayed = sums(want.size(), [&](size_t n) { return error(want[n], got[n]); });
  const DType arithmetic = by.dtype == DType::f64 ? DType::f64 : DType::f32;
  const double work = (kWorkRoundings + std::sqrt(by.terms)) * rounding_of(arithmetic);
  // The error of a log-sum-exp is relative to 1, not to a value that may be near 0.
  const double least = by.weights == DType::none ? 0 : 1, weights = kOfWeights * rounding_of(by.weights);
  const auto limit = [&](double naive, double size) {
    return kTimes * naive + kRoundings * rounding(by.dtype, size) + work * std::max(size, least) + weights;
  };
  const auto share = [](double error, double limit) { return error == 0 ? 0 : error / limit; };

  const double count = double(want.size()), root = want.empty() ? 0 : std::sqrt(size.square / count);
  const double full_size = std::max(root, by.shake > 0 ? golden.naive_mean / by.shake : 0);
  const double unit = by.scaled && full_size > 0 ? full_size : 1;
  Judged j{.mae = strayed.mean / unit, .max = strayed.max / unit, .worst = strayed.worst};
  j.relative_l2 = strayed.square == 0 ? 0 : std::sqrt(strayed.square / count) / full_size;
  const double used[] = {share(strayed.max, limit(golden.naive_max, size.max)),
                         share(strayed.mean, limit(golden.naive_mean, size.mean))};
  j.used = std::isnan(used[0]) || std::isnan(used[1]) ? NAN : std::max(used[0], used[1]);
  j.verdict = !(j.used <= 1) ? Verdict::fail : j.mae <= kGate ? Verdict::pass : Verdict::pass_at_floor;
  return j;
}

}  // namespace attune
