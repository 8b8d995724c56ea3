// SPDX-License-Identifier: Apache-2.0
// Change points: found where a level changed, claimed by chance in at most 5 % of steady series.
#include "tool/history/trend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tool/history/page.h"

namespace attune {
namespace {

// So many runs at 1 and then at `level`, with Gaussian noise; one in fifty is up to a tenth slower.
std::vector<double> series(std::mt19937_64& random, int before, int after, double level, double noise) {
  std::normal_distribution<double> gauss(0, noise);
  std::uniform_real_distribution<double> share(0, 1);
  std::vector<double> values;
  for (int n = 0; n < before + after; ++n)
    values.push_back((n < before ? 1 : level) * (1 + gauss(random)) *
                     (share(random) < 0.02 ? 1 + share(random) / 10 : 1));
  return values;
}

TEST(Splits, steady_series_have_none) {
  std::mt19937_64 random(7);
  for (const int runs : {4, 7, 10, 30, 60}) {
    int claimed = 0;
    for (int n = 0; n < 300; ++n) claimed += !splits(series(random, runs, 0, 1, 0.02), 0.0).empty();
    EXPECT_LE(claimed, 15) << runs << " runs";  // two tests at 1 % each: 6 of 300 expected
  }
}

TEST(Splits, a_lasting_change_is_found_where_it_is) {
  std::mt19937_64 random(8);
  for (const auto& [before, after] : {std::pair{8, 8}, {20, 3}, {3, 20}, {30, 30}}) {
    int found = 0, placed = 0;
    for (int n = 0; n < 200; ++n) {
      const std::vector<Split> all = splits(series(random, before, after, 1.03, 0.003), 0.01);
      found += !all.empty();
      placed += std::any_of(all.begin(), all.end(),
                            [at = before](const Split& s) { return std::abs(int(s.at) - at) <= 1; });
    }
    EXPECT_GE(found, 180) << before << ", " << after;
    EXPECT_GE(placed, 170) << before << ", " << after;
  }
}

TEST(Splits, two_changes_are_two_and_small_or_single_ones_are_none) {
  std::vector<double> values;
  for (int n = 0; n < 36; ++n) values.push_back((n / 12 == 1 ? 1.2 : 1.0) + 1e-4 * (n * 7 % 5));
  const std::vector<Split> two = splits(values, 0.01);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].at, 12u);
  EXPECT_EQ(two[1].at, 24u);
  EXPECT_LE(two[0].chance, kMostChance);
  EXPECT_TRUE(splits(values, 0.25).empty()) << "below the margin";
  std::vector<double> one(30, 1.0);
  one[20] = 9;
  EXPECT_TRUE(splits(one, 0.01).empty()) << "one slow run is not a level";
  EXPECT_TRUE(splits(std::vector<double>(30, 2.0), 0.01).empty());
  EXPECT_TRUE(splits(std::vector<double>{1, 1, 2, 2}, 0.01).empty()) << "four runs cannot tell";
  EXPECT_TRUE(splits(std::vector<double>{}, 0.01).empty());
}

Record at(int day, double ns, const std::string& subject = "cpu_forward") {
  Record r;
  const std::string two = join(day < 10 ? "0" : "", day);
  r.run = join("run", day), r.row_records = 1, r.subject = subject;
  r.problem = "forward f32 b1 h8 q512 k512 d64 causal";
  r.device = "cpu", r.threads = 2, r.provenance.time = join("2026-01-", two, "T00:00:00Z");
  r.provenance.commit = join("c0ffee", two), r.provenance.cpu = "cpu", r.provenance.binary = join("binary", day);
  for (int n = 0; n < 30; ++n) r.samples_ns.push_back(ns * (1 + 1e-4 * n));
  derive(r);
  return r;
}

TEST(Trends, a_report_puts_what_became_slower_first) {
  std::vector<Record> all;
  for (int day = 1; day <= 20; ++day) {
    all.push_back(at(day, 1000 + day % 3, "steady"));
    all.push_back(at(day, day < 8 ? 2000 + day % 3 : 1000 + day % 3, "faster"));
    all.push_back(at(day, day < 12 ? 1000 + day % 3 : 1300 + day % 3, "slower"));
  }
  const std::vector<Trend> trends = trends_of(all);
  ASSERT_EQ(trends.size(), 3u);
  EXPECT_TRUE(trends[0].changes.empty());
  ASSERT_EQ(trends[1].changes.size(), 1u);
  EXPECT_EQ(trends[1].changes[0].at, 7u);
  ASSERT_EQ(trends[2].changes.size(), 1u);
  const ChangePoint& slower = trends[2].changes[0];
  EXPECT_EQ(slower.at, 11u);
  EXPECT_TRUE(slower.is_slower());
  EXPECT_NEAR(slower.ratio, 1.0 / 1.3, 0.01);
  EXPECT_TRUE(sentence(trends[2], slower).starts_with("SLOWER from c0ffee12 (2026-01-12T00:00:00Z) on: 1."))
      << sentence(trends[2], slower);

  const Report report = history_report(trends, {"one record was left out"});
  ASSERT_GE(report.facts.size(), 3u);
  EXPECT_EQ(report.facts[0].tone, Tone::bad);
  EXPECT_EQ(report.facts[0].value, "1");
  ASSERT_EQ(report.verdicts.size(), 2u);
  EXPECT_NE(report.verdicts[0].find("| slower |"), std::string::npos) << report.verdicts[0];
  EXPECT_EQ(report.caveats.front(), "one record was left out");
  const Section* const changes = find_section(report, "changes");
  ASSERT_TRUE(changes);
  EXPECT_EQ(changes->figures.at(0).table.rows.size(), 2u);
  const Section* const rows = find_section(report, "rows");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->figures.size(), 3u);
  EXPECT_EQ(rows->figures[0].table.rows.size(), 20u);
  EXPECT_EQ(std::get<Chart>(rows->figures[0].plots.at(0).drawing).bounds.size(), 2u) << "two levels";
  EXPECT_TRUE(std::get<Chart>(rows->figures[2].plots.at(0).drawing).bounds.empty());
  EXPECT_NE(to_html(report).find("Attention over time"), std::string::npos);
}

TEST(Trends, a_change_of_the_machine_is_said_to_be_one) {
  std::vector<Record> all;
  for (int day = 1; day <= 20; ++day) {
    all.push_back(at(day, day < 11 ? 1000 : 1500));
    all.back().provenance.binary = "0123456789abcdef";
  }
  const std::vector<Trend> trends = trends_of(all);
  ASSERT_EQ(trends.at(0).changes.size(), 1u);
  ASSERT_EQ(trends[0].changes[0].machine.size(), 1u);
  EXPECT_TRUE(trends[0].changes[0].machine[0].starts_with("the machine changed, not the code"));
}

}  // namespace
}  // namespace attune
