// SPDX-License-Identifier: Apache-2.0
#include "tool/record/prices.h"

#include <gtest/gtest.h>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

std::string said(const std::string& text) {
  std::vector<Offer> offers;
  return read_prices(text, "p.tsv", offers).message;
}
std::string offer(const std::string& rest) { return "attune-prices 1\noffer\t" + rest + "\n"; }

TEST(Prices, an_offer_is_read_whatever_its_unit) {
  std::vector<Offer> offers;
  const std::string text =
      "attune-prices 1\r\n# free text\n\noffer\ta\tNVIDIA H200\t3.6 an hour\tby the hour\tminimum 1.5\r\n"
      "offer\tb\t*\t0.001 a second\tby the second\tminimum 0\noffer\tc\t*\t0.06 a minute\tby the minute\tminimum 0";
  ASSERT_EQ(read_prices(text, "p.tsv", offers).message, "");
  ASSERT_EQ(offers.size(), 3u);
  for (const Offer& o : offers) EXPECT_NEAR(o.usd_an_hour, 3.6, 1e-12) << o.name;
  EXPECT_EQ(offers[0].step_s, 3600);
  EXPECT_EQ(offers[2].step_s, 60);
  EXPECT_EQ(offers[0].minimum_usd, 1.5);
  EXPECT_EQ(offers[1].source, "p.tsv:5");
  EXPECT_TRUE(offers[0].fits("NVIDIA H200") && !offers[0].fits("NVIDIA H100") && offers[1].fits("anything"));
}

TEST(Prices, a_run_is_billed_in_whole_steps_and_not_below_the_minimum) {
  const Offer second{.usd_an_hour = 3.6, .step_s = 1}, hour{.usd_an_hour = 3.6, .step_s = 3600};
  EXPECT_NEAR(second.usd(10.2), 0.011, 1e-12);
  EXPECT_NEAR(second.usd(10), 0.010, 1e-12);
  EXPECT_NEAR(hour.usd(10), 3.6, 1e-12);
  EXPECT_NEAR(hour.usd(3600), 3.6, 1e-12);
  EXPECT_NEAR(hour.usd(3601), 7.2, 1e-12);
  const Offer least{.usd_an_hour = 3.6, .step_s = 1, .minimum_usd = 0.5};
  EXPECT_NEAR(least.usd(10), 0.5, 1e-12);
  EXPECT_NEAR(least.usd(3600), 3.6, 1e-12);
}

TEST(Prices, every_mistake_names_its_line_and_what_is_accepted) {
  EXPECT_EQ(said(""), "p.tsv:1: the first line is not 'attune-prices 1'");
  EXPECT_EQ(said("attune-prices 2\n"), "p.tsv:1: the first line is not 'attune-prices 1'");
  EXPECT_EQ(said("attune-prices 1\n# nothing\n"), "p.tsv: no offers");
  EXPECT_EQ(said("attune-prices 1\noffers\ta\n"), "p.tsv:2: 'offers' is not 'offer', a comment (#) or empty");
  EXPECT_TRUE(has(said(offer("a\tb\t1 an hour\tby the second")), "p.tsv:2: offer has 5 fields, not 6"));
  EXPECT_TRUE(has(said(offer("\t*\t1 an hour\tby the second\tminimum 0")), "offer without a name or device"));
  for (const char* price : {"free an hour", "-1 an hour", "1", "1 a day", "nan an hour", "1e400 an hour", "1 an hour "})
    EXPECT_TRUE(has(said(offer(join("a\t*\t", price, "\tby the second\tminimum 0"))), "is not a number of dollars and"))
        << price;
  EXPECT_TRUE(has(said(offer("a\t*\t1 an hour\tby the day\tminimum 0")), "billing 'by the day' is not one of"));
  EXPECT_TRUE(has(said(offer("a\t*\t1 an hour\tby the second\t0")), "'0' is not 'minimum' and a number of dollars"));
}

TEST(Prices, dollars_are_cents_or_three_digits) {
  EXPECT_EQ(usd_text(0), "$0");
  EXPECT_EQ(usd_text(1e60), "$1.00e+60");
  EXPECT_EQ(usd_text(12.345), "$12.35");
  EXPECT_EQ(usd_text(0.01234), "$0.0123");
}

TEST(Cost, a_call_that_took_no_time_is_no_measurement) {
  const std::string prices = temporary("prices.tsv"), records = temporary("zero.jsonl");
  std::ofstream(prices) << "attune-prices 1\noffer\ta\t*\t2.99 an hour\tby the second\tminimum 0\n";
  Record r = record("cpu_forward", 512, 1000);
  r.samples_ns.assign(10, 0), r.median_ns = 0;
  std::ofstream(records) << to_json(r) << "\n";
  const Ran cost = attune_says({"cost", records, "--prices", prices});
  EXPECT_EQ(cost.code, 1);
  EXPECT_EQ(cost.err, "attune cost: no record has a time above 0: 1 record is given\n");
  const Ran tuned = attune_says({"tune", records, "--out", temporary("zero.tsv")});
  EXPECT_EQ(tuned.code, 1);
  EXPECT_EQ(tuned.err, "attune tune: no record can be used: 1 record: its time is not above 0\n");
  EXPECT_FALSE(std::filesystem::exists(temporary("zero.tsv")));
}

}  // namespace
}  // namespace attune
