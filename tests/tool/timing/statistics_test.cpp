// SPDX-License-Identifier: Apache-2.0
// Statistics on synthetic samples with known properties.
#include "tool/timing/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace attune {
namespace {

// Log-normal: right-skewed like timings; the true median is `at`.
std::vector<double> timings(int n, double at, uint32_t seed, double noise = 0.03) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<double> x(static_cast<size_t>(n));
  for (double& v : x) v = at * std::exp(normal(random));
  return x;
}

std::vector<double> scaled(std::vector<double> x, double factor) {
  for (double& v : x) v *= factor;
  return x;
}

TEST(Median, is_the_middle_and_the_mean_of_two_middles) {
  EXPECT_EQ(median(std::vector<double>{}), 0);
  EXPECT_EQ(median(std::vector<double>{3}), 3);
  EXPECT_EQ(median(std::vector<double>{9, 1, 5}), 5);
  EXPECT_EQ(median(std::vector<double>{9, 1, 5, 7}), 6);
  EXPECT_EQ(quantile(std::vector<double>{0, 10}, 0.25), 2.5);
}

TEST(MedianInterval, has_the_textbook_ranks) {
  // The 2nd and 9th of 10 samples cover the median with 97.9 %; the 6th and 15th of 20 with 95.9 %.
  std::vector<double> x;
  for (int i = 1; i <= 10; ++i) x.push_back(i);
  Interval i = median_interval(x);
  EXPECT_EQ(i.low, 2);
  EXPECT_EQ(i.high, 9);
  EXPECT_NEAR(i.confidence, 0.9785, 1e-3);
  for (int n = 11; n <= 20; ++n) x.push_back(n);
  i = median_interval(x);
  EXPECT_EQ(i.low, 6);
  EXPECT_EQ(i.high, 15);
  EXPECT_NEAR(i.confidence, 0.9586, 1e-3);
}

TEST(MedianInterval, says_what_few_samples_cover) {
  const Interval i = median_interval(std::vector<double>{2, 1, 3});
  EXPECT_EQ(i.low, 1);
  EXPECT_EQ(i.high, 3);
  EXPECT_NEAR(i.confidence, 0.75, 1e-9);
  EXPECT_EQ(median_interval(std::vector<double>{7}).confidence, 0);
}

TEST(MedianInterval, covers_the_true_median_as_often_as_it_says) {
  for (const int n : {10, 30, 101, 1500}) {
    int inside = 0;
    const int trials = n > 1000 ? 300 : 1000;
    for (int t = 0; t < trials; ++t) {
      const Interval i = median_interval(timings(n, 100, uint32_t(t + 1)));
      inside += i.low <= 100 && 100 <= i.high;
    }
    EXPECT_GT(inside, 0.925 * trials) << n;
    EXPECT_LT(inside, 0.995 * trials) << n;
  }
}

TEST(MedianInterval, narrows_with_more_samples) {
  const std::vector<double> x = timings(2000, 100, 3);
  const auto width = [&](size_t n) { return half_width(median_interval(std::span(x).first(n)), 100); };
  EXPECT_GT(width(30), 2 * width(400));
  EXPECT_GT(width(400), width(2000));
}

TEST(MedianRatio, covers_the_true_ratio) {
  int inside = 0;
  for (uint32_t t = 0; t < 200; ++t) {
    const Ratio r = median_ratio(timings(40, 120, 2 * t + 1), timings(40, 100, 2 * t + 2));
    inside += r.interval.low <= 1.2 && 1.2 <= r.interval.high;
  }
  EXPECT_GT(inside, 178);
  EXPECT_LT(inside, 200);
}

TEST(MedianRatio, is_the_same_for_the_same_samples) {
  const auto a = timings(50, 100, 1), b = timings(50, 90, 2);
  EXPECT_EQ(median_ratio(a, b).interval.low, median_ratio(a, b).interval.low);
  EXPECT_EQ(resampled_ratio(a, b).interval.low, resampled_ratio(a, b).interval.low);
}

TEST(MedianRatio, combines_the_rank_intervals_of_both_sides_by_squares) {
  const auto a = timings(30, 120, 1), b = timings(30, 100, 2, 0.01);
  const Interval ia = median_interval(a), ib = median_interval(b);
  const Ratio r = median_ratio(a, b);
  const double below = std::hypot(std::log(median(a) / ia.low), std::log(ib.high / median(b)));
  EXPECT_NEAR(r.interval.low, r.value * std::exp(-below), 1e-12);
  EXPECT_EQ(r.interval.confidence, std::min(ia.confidence, ib.confidence));
}

TEST(MedianRatio, readings_of_a_coarse_timer_are_known_to_half_a_grain) {
  std::vector<double> a(30, 100), b(30, 101);
  for (size_t n = 0; n < 8; ++n) a[n] = 101, b[n] = 102;  // a step of the timer apart, and so in all of their ranks
  EXPECT_EQ(verdict(median_ratio(b, a), 0.005), Speed::unclear);
  EXPECT_EQ(verdict(resampled_ratio(b, a), 0.005), Speed::faster);  // how versions 1 and 2 saw it
  EXPECT_EQ(verdict(median_ratio(std::vector<double>(30, 101), std::vector<double>(30, 100)), 0.005), Speed::unclear);
  EXPECT_EQ(verdict(median_ratio(std::vector<double>(30, 120), std::vector<double>(30, 100)), 0.005), Speed::faster);
}

TEST(ResampledRatio, of_three_samples_is_as_wide_as_their_extremes) {
  const Ratio r = resampled_ratio(std::vector<double>{10, 11, 12}, std::vector<double>{5, 5.5, 6});
  EXPECT_EQ(r.value, 2);
  EXPECT_NEAR(r.interval.low, 10.0 / 6, 1e-12);
  EXPECT_NEAR(r.interval.high, 12.0 / 5, 1e-12);
  EXPECT_LT(r.interval.confidence, 0.95);
  EXPECT_EQ(verdict(r, 0.01, {}, 0), Speed::faster);  // versions 1 and 2 claimed it
  EXPECT_EQ(verdict(r, 0.01), Speed::unclear);
}

TEST(Verdict, a_large_spread_keeps_a_difference_from_being_claimed_and_from_being_the_same) {
  const auto is = [](double low, double high, double spread) {
    return verdict(Ratio{(low + high) / 2, {low, high, 0.95}}, 0.01, spread);
  };
  EXPECT_EQ(is(0.98, 1.02, 0.03), Speed::same);
  EXPECT_EQ(is(1.04, 1.05, 0.03), Speed::faster);
  EXPECT_EQ(is(0.09, 0.10, 0.03), Speed::slower);
  EXPECT_EQ(is(0.09, 0.10, 28), Speed::unclear);
  EXPECT_EQ(is(1.06, 1.07, 0.10), Speed::unclear);
  EXPECT_EQ(is(0.97, 1.03, 0.10), Speed::same);
}

TEST(MedianRatio, of_nothing_claims_nothing) {
  EXPECT_EQ(verdict(median_ratio({}, {}), 0.01), Speed::unclear);
  const std::vector<double> never(20, 0.), some = timings(20, 100, 1);
  EXPECT_EQ(verdict(median_ratio(never, some), 0.01), Speed::unclear);  // a baseline that took no time
  EXPECT_EQ(verdict(median_ratio(some, never), 0.01), Speed::unclear);
}

TEST(Outliers, are_counted_by_fence_and_side) {
  std::vector<double> x;
  for (int i = 0; i < 101; ++i)
    x.push_back(100 + i * 0.1);  // quartiles 102.5 and 107.5: fences at 95 / 115, 87.5 / 122.5
  EXPECT_EQ(outliers(x).total(), 0);
  x.insert(x.end(), {116, 200});
  EXPECT_EQ(outliers(x).high_mild, 1);
  EXPECT_EQ(outliers(x).high_severe, 1);
  x.insert(x.end(), {93, 1});
  EXPECT_EQ(outliers(x).low_mild, 1);
  EXPECT_EQ(outliers(x).low_severe, 1);
  EXPECT_EQ(outliers(x).total(), 4);
}

TEST(Modes, one_for_one_and_two_for_a_clock_that_changed) {
  int alarms = 0, found = 0;
  for (uint32_t t = 1; t <= 200; ++t) {
    alarms += modes(timings(40, 100, t)) > 1;
    auto x = timings(25, 100, t);
    for (const double v : timings(15, 130, t + 1000)) x.push_back(v);
    found += modes(x) == 2;
  }
  EXPECT_LE(alarms, 20);
  EXPECT_GE(found, 190);
}

TEST(Modes, a_grain_of_the_timer_and_a_far_outlier_are_no_modes) {
  std::vector<double> x(40, 1000.0);
  EXPECT_EQ(modes(x), 1);
  for (size_t i = 0; i < 20; ++i) x[i] = 1001;
  EXPECT_EQ(modes(x), 1);
  x = timings(100, 100, 5);
  x.push_back(1e6);
  EXPECT_EQ(modes(x), 1);
}

TEST(Modes, too_few_samples_show_none) {
  EXPECT_EQ(modes(std::vector<double>{1, 1, 1, 1, 2, 2, 2, 2}), 1);
}

TEST(Settled, needs_two_windows_that_agree) {
  std::vector<double> x;
  for (int i = 0; i < 19; ++i) x.push_back(100 + i % 2);
  EXPECT_FALSE(settled(x));
  x.push_back(100);
  EXPECT_TRUE(settled(x));
  x.insert(x.end(), 10, 90);
  EXPECT_FALSE(settled(x));
  x.insert(x.end(), 10, 90);
  EXPECT_TRUE(settled(x));
}

TEST(Settled, sees_a_slow_fade) {
  std::vector<double> x;
  for (int i = 0; i < 400; ++i) x.push_back(100 * (1 + 0.5 * (400 - i) / 400.0) * (1 + 0.003 * (i % 3)));
  EXPECT_FALSE(settled(x));
}

TEST(Verdict, has_four_states) {
  const auto of = [](double low, double value, double high) { return verdict({value, {low, high, 0.95}}, 0.02); };
  EXPECT_EQ(of(1.05, 1.1, 1.2), Speed::faster);
  EXPECT_EQ(of(0.8, 0.9, 0.95), Speed::slower);
  EXPECT_EQ(of(0.99, 1.0, 1.01), Speed::same);
  EXPECT_EQ(of(0.97, 1.0, 1.03), Speed::unclear);
  EXPECT_EQ(of(1.01, 1.05, 1.1), Speed::unclear);
  EXPECT_EQ(of(0.9, 0.95, 0.99), Speed::unclear);
  EXPECT_EQ(name(Speed::faster) + name(Speed::slower) + name(Speed::same) + name(Speed::unclear),
            "FASTERSLOWERSAMEUNCLEAR");
}

TEST(Verdict, finds_an_injected_slow_down_of_a_tenth) {
  for (uint32_t t = 1; t <= 50; ++t) {
    const auto before = timings(40, 100, 2 * t), after = scaled(timings(40, 100, 2 * t + 1), 1.1);
    EXPECT_EQ(verdict(median_ratio(before, after), 0.02), Speed::slower) << t;
    EXPECT_EQ(verdict(median_ratio(after, before), 0.02), Speed::faster) << t;
  }
}

TEST(Verdict, claims_no_difference_of_a_thing_to_itself) {
  int claims = 0;
  for (uint32_t t = 1; t <= 200; ++t) {
    const Speed v = verdict(median_ratio(timings(40, 100, 2 * t), timings(40, 100, 2 * t + 1)), 0.01);
    claims += v == Speed::faster || v == Speed::slower;
  }
  EXPECT_LE(claims, 6);
}

TEST(Spread, is_the_largest_difference_to_either_side) {
  EXPECT_NEAR(spread({1.0, {0.98, 1.01, 0.95}}), 1 / 0.98 - 1, 1e-12);
  EXPECT_NEAR(spread({1.0, {0.99, 1.05, 0.95}}), 0.05, 1e-12);
  // With the A/A spread as margin, the A/A pair itself never gives a claim.
  const Ratio r = median_ratio(timings(40, 100, 1), timings(40, 103, 2));
  EXPECT_NE(verdict(r, spread(r)), Speed::faster);
  EXPECT_NE(verdict(r, spread(r)), Speed::slower);
}

TEST(EnqueueOnly, shows_in_the_wait_that_follows) {
  EXPECT_TRUE(enqueue_only(5e3, 2e6));
  EXPECT_FALSE(enqueue_only(2e6, 1e3));
  EXPECT_FALSE(enqueue_only(100, 200));  // an empty wait is never free
}

}  // namespace
}  // namespace attune
