// SPDX-License-Identifier: Apache-2.0
// Fits a power law y = factor * x^exponent to points, by least squares of the logarithms.
#pragma once
#include <utility>
#include <vector>

namespace attune {

struct Fit {
  int points = 0;                // 0: fewer than two distinct x, or a value without a logarithm
  double exponent = 0, factor = 0;
  double low = 0, high = 0;      // 95 % interval of the exponent, by Student's t; infinite for two points
  double worst = 0;              // largest factor between a point and the line
};
Fit fit_power(const std::vector<std::pair<double, double>>& points);

// The 97.5 % quantile of Student's t.
double student_t(int degrees_of_freedom);

}  // namespace attune
