// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/fit.h"

#include <algorithm>
#include <cmath>

namespace attune {

double student_t(int n) {
  // Small values from tables; above, an expansion around the normal quantile is right to four digits.
  constexpr double kSmallSamples[] = {INFINITY, 12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
                             2.446912, 2.364624,  2.306004, 2.262157, 2.228139};
  if (n <= 0) return INFINITY;
  if (n <= 10) return kSmallSamples[n];
  const double z = 1.959963985, v = n;
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

Fit fit_power(const std::vector<std::pair<double, double>>& points) {
  const auto n = double(points.size());
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) {
    if (!(x > 0) || !(y > 0) || !std::isfinite(x) || !std::isfinite(y)) return {};
    mean_x += std::log(x) / n, mean_y += std::log(y) / n;
  }
  double xx = 0, xy = 0;
  for (const auto& [x, y] : points) {
    const double dx = std::log(x) - mean_x;
    xx += dx * dx, xy += dx * (std::log(y) - mean_y);
  }
  if (!(xx > 1e-12)) return {};
  Fit f{.points = int(points.size()), .exponent = xy / xx};
  const double at_one = mean_y - f.exponent * mean_x;
  f.factor = std::exp(at_one);
  double left = 0;
  for (const auto& [x, y] : points) {
    const double off = std::log(y) - at_one - f.exponent * std::log(x);
    left += off * off, f.worst = std::max(f.worst, std::exp(std::fabs(off)));
  }
  const double half = points.size() > 2 ? student_t(int(points.size()) - 2) * std::sqrt(left / (n - 2) / xx) : INFINITY;
  f.low = f.exponent - half, f.high = f.exponent + half;
  return f;
}

}  // namespace attune
