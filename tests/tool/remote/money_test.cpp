// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/money.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tool/remote/price_list.h"

namespace attune {
namespace {

constexpr PlannedTime kTime{.provision_s = 60, .setup_s = 60, .run_s = 600, .teardown_s = 60};  // 13 minutes
PlannedTarget target(double usd_an_hour, double step_s = 60) {
  return {.name = "prime:H200", .rate = {.usd_an_hour = usd_an_hour, .step_s = step_s}, .time = kTime};
}

TEST(Money, is_billed_in_whole_steps_with_a_minimum) {
  const Rate rate{.usd_an_hour = 6, .step_s = 60, .minimum_usd = 0.15, .fixed_usd = 1};
  EXPECT_DOUBLE_EQ(rate.usd(0), 1.15);
  EXPECT_DOUBLE_EQ(rate.usd(120), 1.2);
  EXPECT_DOUBLE_EQ(rate.usd(121), 1.3);
  EXPECT_DOUBLE_EQ(rate.seconds_for(1.29), 120);
  EXPECT_DOUBLE_EQ(rate.seconds_for(1.30), 180);
  EXPECT_DOUBLE_EQ(rate.seconds_for(1.10), 0);  // less than the minimum
}

// Whatever the price, the step and the total: the lease costs no more than the total.
TEST(Money, a_lease_never_costs_more_than_its_total) {
  for (const double hour : {0.4, 2.49, 3.99, 31.7, 98.32})
    for (const double step : {1.0, 60.0, 3600.0})
      for (const double most : {0.1, 0.77, 3.0, 20.0, 64.2}) {
        std::vector<Limits> limits;
        const PlannedTarget t = target(hour, step);
        const Status s = limits_of({.usd = most}, {t}, limits);
        EXPECT_EQ(s.ok(), t.rate.usd(kTime.all()) <= most) << hour << " " << step << " " << most;
        if (!s.ok()) { EXPECT_EQ(s.code, Code::out_of_memory); continue; }
        EXPECT_LE(t.rate.usd(limits[0].lease_s), most + 1e-9);
        EXPECT_LE(limits[0].stop_s, 0.9 * limits[0].lease_s + 1e-9);
        EXPECT_LE(limits[0].stop_s, limits[0].kill_s);
        EXPECT_DOUBLE_EQ(limits[0].kill_s, limits[0].lease_s - kTime.teardown_s);
        EXPECT_GE(limits[0].lease_s, kTime.all());
      }
}

TEST(Money, several_targets_share_one_total) {
  std::vector<Limits> limits;
  const std::vector<PlannedTarget> two = {target(6), target(2)};
  ASSERT_TRUE(limits_of({.usd = 4}, two, limits).ok());
  EXPECT_NEAR(limits[0].lease_s, limits[1].lease_s, 60);
  EXPECT_LE(two[0].rate.usd(limits[0].lease_s) + two[1].rate.usd(limits[1].lease_s), 4 + 1e-9);
  const Status s = limits_of({.usd = 1.7}, two, limits);
  EXPECT_EQ(s.message, "--max-usd: $1.70 given; the plan needs about $1.73 with start, set-up and teardown: "
                       "prime:H200 $1.30 for 13.0 minutes, prime:H200 $0.43 for 13.0 minutes");
}

TEST(Money, minutes_limit_each_machine_and_a_price_needs_a_limit) {
  std::vector<Limits> limits;
  ASSERT_TRUE(limits_of({.minutes = 20}, {target(2)}, limits).ok());
  EXPECT_DOUBLE_EQ(limits[0].lease_s, 1200);
  EXPECT_EQ(limits_of({.minutes = 12}, {target(2)}, limits).message,
            "--max-minutes: 12 minutes given; prime:H200 needs about 13.0: 2.0 to start, 10.0 to run, 1.0 to end");
  EXPECT_EQ(limits_of({}, {target(2)}, limits).message,
            "--max-usd: not given, and prime:H200 costs $2.00 an hour; give --max-usd or --max-minutes");
  EXPECT_TRUE(limits_of({}, {target(0)}, limits).ok());
}

TEST(Money, phases_are_from_one_event_to_the_next) {
  TargetState state;
  state.intent_at = 100, state.acquired_at = 103, state.ready_at = 160, state.started_at = 190, state.ended_at = 490;
  state.gone_at = 500, state.rows = 3;
  Spent s = spent_by("t", {.usd_an_hour = 3600, .step_s = 1}, state);
  EXPECT_DOUBLE_EQ(s.provision_s, 60);
  EXPECT_DOUBLE_EQ(s.setup_s, 30);
  EXPECT_DOUBLE_EQ(s.run_s, 300);
  EXPECT_DOUBLE_EQ(s.idle_s, 10);
  EXPECT_DOUBLE_EQ(s.usd(), 400);
  s.billed = 390;
  EXPECT_DOUBLE_EQ(s.usd(), 390);
  // A machine that was never ready spent all of its time on provisioning.
  state.ready_at = state.started_at = state.ended_at = 0;
  s = spent_by("t", {.usd_an_hour = 3600, .step_s = 1}, state);
  EXPECT_DOUBLE_EQ(s.provision_s, 400);
  EXPECT_DOUBLE_EQ(s.setup_s + s.run_s + s.idle_s, 0);
  EXPECT_DOUBLE_EQ(spent_by("t", {.usd_an_hour = 1}, {}).seconds(), 0);
}

TEST(Money, the_table_prints_its_assumptions) {
  const Spent s{.target = "prime:H200", .rate = {.usd_an_hour = 3}, .provision_s = 60, .setup_s = 60, .run_s = 600,
                .idle_s = 60, .rows = 12, .billed = 0.6, .dearest_an_hour = 6};
  const std::string text = spending_text({s}, {.usd = 2}, 0);
  for (const char* part : {"1.0 min $0.050", "10.0 min $0.50", "$0.65", "total $0.60, as billed, of at most $2.00",
                           "the dearest offer $1.30: $0.70 saved, for the same time",
                           "by hand $3.00: $2.40 saved, with 20 minutes of set-up by a person, whole hours"})
    EXPECT_NE(text.find(part), text.npos) << part << "\n" << text;
}

TEST(PriceList, ships_with_a_date_and_can_be_replaced) {
  PriceList list;
  ASSERT_TRUE(price_list(list).ok());
  EXPECT_EQ(list.date.size(), 10u);
  double hour = 0;
  ASSERT_TRUE(listed_price("modal L4", hour).ok());
  EXPECT_NEAR(hour, 0.7992, 1e-9);
  EXPECT_EQ(listed_price("modal X1", hour).message,
            "the price of 'modal X1' is not in the list that ships; add a line, or set usd_an_hour");
  use_price_list("/nowhere/prices.tsv");
  EXPECT_FALSE(price_list(list).ok());
  use_price_list("");
}

}  // namespace
}  // namespace attune
