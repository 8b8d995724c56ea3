// SPDX-License-Identifier: Apache-2.0
#include "tool/timing/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attune {
namespace {

TEST(Fit, finds_the_exponent_and_the_factor_of_a_power) {
  std::vector<std::pair<double, double>> points;
  for (const double x : {512.0, 1024.0, 2048.0, 4096.0}) points.push_back({x, 3 * std::pow(x, 1.75)});
  const Fit f = fit_power(points);
  EXPECT_EQ(f.points, 4);
  EXPECT_NEAR(f.exponent, 1.75, 1e-12);
  EXPECT_NEAR(f.factor, 3, 1e-9);
  EXPECT_NEAR(f.low, 1.75, 1e-6);
  EXPECT_NEAR(f.high, 1.75, 1e-6);
  EXPECT_NEAR(f.worst, 1, 1e-9);
}

TEST(Fit, interval_is_students) {
  // y = log-residuals -1, 2, -1 (in units of 0.1) at x = 1, e, e^2: slope 2, and half = t(1) * 0.1 * sqrt(6 / 1 / 2).
  const auto y = [](double x, double off) { return std::exp(2 * x + 0.1 * off); };
  const Fit f = fit_power({{1, y(0, -1)}, {std::exp(1), y(1, 2)}, {std::exp(2), y(2, -1)}});
  EXPECT_NEAR(f.exponent, 2, 1e-12);
  EXPECT_NEAR(f.high - 2, 12.706205 * 0.1 * std::sqrt(3.0), 1e-6);
  EXPECT_NEAR(f.high - f.exponent, f.exponent - f.low, 1e-12);
  EXPECT_NEAR(f.worst, std::exp(0.2), 1e-9);
}

TEST(Fit, two_points_say_nothing_of_their_error) {
  const Fit f = fit_power({{1, 1}, {2, 4}});
  EXPECT_NEAR(f.exponent, 2, 1e-12);
  EXPECT_TRUE(std::isinf(f.low) && std::isinf(f.high));
}

TEST(Fit, what_has_no_logarithm_or_no_extent_is_no_fit) {
  EXPECT_EQ(fit_power({}).points, 0);
  EXPECT_EQ(fit_power({{512, 1}}).points, 0);
  EXPECT_EQ(fit_power({{512, 1}, {512, 2}}).points, 0);
  EXPECT_EQ(fit_power({{1, 1}, {2, 0}, {3, 1}}).points, 0);
  EXPECT_EQ(fit_power({{1, 1}, {2, NAN}, {3, 1}}).points, 0);
  EXPECT_EQ(fit_power({{-1, 1}, {2, 1}, {3, 1}}).points, 0);
}

TEST(Fit, quantiles_of_students_t_are_those_of_the_tables) {
  EXPECT_TRUE(std::isinf(student_t(0)));
  EXPECT_NEAR(student_t(1), 12.7062, 1e-3);
  EXPECT_NEAR(student_t(10), 2.2281, 1e-4);
  EXPECT_NEAR(student_t(11), 2.2010, 5e-4);
  EXPECT_NEAR(student_t(30), 2.0423, 1e-4);
  EXPECT_NEAR(student_t(1000), 1.9623, 1e-4);
}

}  // namespace
}  // namespace attune
