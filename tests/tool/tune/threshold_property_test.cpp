// SPDX-License-Identifier: Apache-2.0
// Properties of the threshold rule over random curves. It matches its definition; a larger margin never switches
// earlier; a better curve never switches later; by work, no other choice costs less; tuning again on the outcome
// changes nothing.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "tool/tune/threshold.h"

using namespace attune;

namespace {

double between(int low, int high) { return *rc::gen::inRange(low, high) / 1000.0; }

Curves draw() {
  Curves c;
  const int lengths = *rc::gen::inRange(1, 9), backends = *rc::gen::inRange(2, 6);
  for (int n = 0; n < lengths; ++n) c.lengths.push_back(64 << n), c.spread.push_back(between(0, 50));
  for (int b = 0; b < backends; ++b) {
    Curve curve{std::string(1, char('a' + b)), {}};
    for (int n = 0; n < lengths; ++n) {
      CurvePoint p{.measured = *rc::gen::inRange(0, 8) > 0, .low = between(500, 2000), .log_time = between(0, 1000),
              .half = between(0, 50)};
      if (!*rc::gen::inRange(0, 10)) p.low = NAN;
      if (!*rc::gen::inRange(0, 10)) p.low = INFINITY;
      curve.points.push_back(p);
    }
    c.backends.push_back(std::move(curve));
  }
  c.baseline = size_t(*rc::gen::inRange(0, backends));
  return c;
}

// Tries every length, as close to the definition as possible.
std::optional<int> defined(const Curves& c, size_t backend, double margin) {
  for (size_t from = 0; from < c.lengths.size(); ++from) {
    const CurvePoint& first = c.backends[backend].points[from];
    bool holds = first.measured && first.low >= 1 + margin;  // false for NaN
    int say_so = 0;
    for (size_t n = from; n < c.lengths.size(); ++n) {
      const CurvePoint& p = c.backends[backend].points[n];
      holds = holds && p.measured && (std::isnan(p.low) || p.low >= 1 + margin);
      say_so += std::isnan(p.low) ? 0 : std::isinf(p.low) ? 2 : 1;
    }
    if (holds && (say_so > 1 || c.lengths.size() == 1)) return c.lengths[from];
  }
  return std::nullopt;
}

TEST(ThresholdProperty, it_is_what_its_definition_says) {
  EXPECT_TRUE(rc::check([] {
    const Curves c = draw();
    const double margin = between(0, 500);
    for (size_t b = 0; b < c.backends.size(); ++b)
      RC_ASSERT(threshold(c, b, {.margin = margin}) == defined(c, b, margin));
  }));
}

TEST(ThresholdProperty, a_larger_margin_or_a_worse_curve_never_switches_on_earlier) {
  EXPECT_TRUE(rc::check([] {
    const Curves c = draw();
    Curves worse = c;
    for (Curve& curve : worse.backends)
      for (CurvePoint& p : curve.points)
        if (!*rc::gen::inRange(0, 3)) p.low -= between(0, 500);
    const double margin = between(0, 500);
    const auto order = [](std::optional<int> from) { return from.value_or(INT32_MAX); };
    for (size_t b = 0; b < c.backends.size(); ++b) {
      const int from = order(threshold(c, b, {.margin = margin}));
      RC_ASSERT(order(threshold(c, b, {.margin = margin + between(1, 500)})) >= from);
      RC_ASSERT(order(threshold(worse, b, {.margin = margin})) >= from);
    }
  }));
}

TEST(ThresholdProperty, what_is_chosen_may_be_used_and_nothing_that_may_is_clearly_faster) {
  EXPECT_TRUE(rc::check([] {
    const Curves c = draw();
    const TuneChoice choice = choose(c, {});
    for (size_t n = 0; n < c.lengths.size(); ++n) {
      const auto may = [&](size_t b) { return choice.from[b] && *choice.from[b] <= c.lengths[n]; };
      const size_t at = choice.at[n];
      bool any = false;
      for (size_t b = 0; b < c.backends.size(); ++b) {
        any = any || may(b);
        if (!may(b) || !may(at)) continue;
        const CurvePoint &p = c.backends[at].points[n], &q = c.backends[b].points[n];
        const double gain = p.log_time - q.log_time;
        const bool clearly = gain > std::log1p(c.spread[n]) && gain > std::hypot(p.half, q.half);
        RC_ASSERT(!clearly);
      }
      const bool fine = any ? may(at) : at == c.baseline || !c.backends[c.baseline].points[n].measured;
      RC_ASSERT(fine);
    }
  }));
}

TEST(ThresholdProperty, tuning_again_changes_nothing) {
  EXPECT_TRUE(rc::check([] {
    Curves c = draw();
    const TuneChoice first = choose(c, {});
    for (const size_t b : first.at) c.used.push_back(c.backends[b].backend);
    RC_ASSERT(choose(c, {}).at == first.at);
  }));
}

// Tries every assignment.
double cost_of(const Curves& c, const std::vector<size_t>& at) {
  double sum = 0;
  for (size_t n = 0; n < at.size(); ++n) {
    const CurvePoint& p = c.backends[at[n]].points[n];
    sum += p.log_time;
    if (n && at[n] != at[n - 1])
      sum += std::max(change_cost(), std::hypot(p.half, c.backends[at[n - 1]].points[n].half));
  }
  return sum;
}

TEST(ThresholdProperty, by_work_no_other_way_costs_less_and_tuning_again_changes_nothing) {
  EXPECT_TRUE(rc::check([] {
    Curves c = draw();
    for (const int length : c.lengths) c.works.push_back(length);
    std::vector<bool> may;
    for (size_t b = 0; b < c.backends.size(); ++b) may.push_back(b < 3 && (b == 1 || *rc::gen::inRange(0, 3)));
    const std::vector<size_t> first = choose_by_work(c, may);
    for (const size_t b : first) RC_ASSERT(bool(may[b]));
    std::vector<size_t> way(c.works.size(), 0);
    for (bool more = true; more;) {
      bool allowed = true;
      for (const size_t b : way) allowed = allowed && may[b];
      if (allowed) RC_ASSERT(cost_of(c, first) <= cost_of(c, way) + 1e-9);
      more = false;  // increments like a counter
      for (size_t n = 0; n < way.size() && !more; ++n)
        if (more = ++way[n] < std::min<size_t>(3, may.size()); !more) way[n] = 0;
    }
    for (const size_t b : first) c.used.push_back(c.backends[b].backend);
    RC_ASSERT(choose_by_work(c, may) == first);
  }));
}

}  // namespace
