// SPDX-License-Identifier: Apache-2.0
// What a report claims: means, heads of columns, and what regressed.
#include <gtest/gtest.h>

#include "tests/tool/report/reports.h"
#include "tests/tool/report/typical.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

TEST(Report, a_mean_is_over_decided_problems_and_grey_where_one_is_unclear) {
  std::vector<Record> records = typical();
  EXPECT_EQ(report_of(records).facts[0].tone, Tone::bad);  // 1.00x is not a gain
  records[1].ratio.value = 3, records[5].verdict = "UNCLEAR", records[5].ratio.value = 0.01;
  Report r = report_of(records);
  EXPECT_EQ(r.verdicts[0], "cpu_forward against torch:sdpa: faster at 1 of 3 problems, the same at 1, unclear at 1; "
                           "geometric mean 1.73x of the 2 decided, from 1.00x to 3.00x.");
  EXPECT_EQ(r.facts[0].value, "1.73x");
  EXPECT_EQ(r.facts[0].detail, "cpu_forward, geometric mean of 2 problems; 1 more unclear");
  EXPECT_EQ(r.facts[0].tone, Tone::plain);
  for (Record& one : records) one.ratio.interval.confidence = 0.75;  // as records of version 2 decided it
  r = report_of(records);
  EXPECT_EQ(r.verdicts[0], "cpu_forward against torch:sdpa: faster at 0 of 3 problems, unclear at 3.");
  EXPECT_EQ(r.facts[0].value, "unclear");
  EXPECT_EQ(r.facts[0].tone, Tone::weak);
}

TEST(Report, heads_of_columns_are_true_for_every_row_under_them) {
  std::vector<Record> records = typical();
  Report r = report_of(records);
  EXPECT_EQ(section(r, "lengths").figures[0].table.head[3], "95 % interval");
  EXPECT_EQ(section(r, "against").figures[0].table.head[2], "95 % interval");
  EXPECT_TRUE(has(section(r, "lengths").figures[0].plots[0].caption, "bands are 95 % intervals of the median"));
  EXPECT_FALSE(has(to_markdown(r), " at 75 %"));
  records[3].interval.confidence = records[3].ratio.interval.confidence = 0.75;
  r = report_of(records);
  EXPECT_EQ(section(r, "lengths").figures[0].table.head[3], "interval");
  EXPECT_EQ(section(r, "lengths").figures[0].table.rows[3][3].text, "39.6 us ... 40.4 us at 75 %");
  EXPECT_EQ(section(r, "against").figures[0].table.head[2], "interval");
  EXPECT_EQ(section(r, "against").figures[0].table.rows[1][2].text, "0.980 ... 1.02 at 75 %");
  EXPECT_TRUE(has(section(r, "lengths").figures[0].plots[0].caption, "bands are intervals of the median"));
  EXPECT_TRUE(has(to_markdown(r), "1 row with fewer than 6 samples")) << to_markdown(r);
}

TEST(Report, earlier_run_shows_what_became_slower_first) {
  auto before = typical(), now = typical();
  now[1].samples_ns.assign(30, 1.1e4), now[1].median_ns = 1.1e4;
  now[0].samples_ns.assign(30, 1e4), now[0].median_ns = 1e4;
  const Report r = make_report({.records = now, .baseline = before, .baseline_name = "monday.jsonl"});
  EXPECT_EQ(section(r, "regressions").notes.at(0), "Against monday.jsonl: 1 SLOWER, 1 FASTER, 4 SAME.");
  const Table& t = section(r, "regressions").figures.at(0).table;
  EXPECT_EQ(t.rows.at(0)[1].text, "cpu_forward");
  EXPECT_EQ(t.rows.at(0)[7].text, "SLOWER");
  EXPECT_EQ(t.rows.back()[7].text, "FASTER");
  EXPECT_EQ(r.verdicts.front(), section(r, "regressions").notes[0]);
  EXPECT_EQ(r.facts[0].value, "1");
  EXPECT_EQ(r.facts[0].name, "regression");
  EXPECT_EQ(r.facts[0].detail, "against monday.jsonl: 1 SLOWER, 1 FASTER, 4 SAME");
  EXPECT_EQ(r.facts[0].tone, Tone::bad);
  now = before;
  const Report same = make_report({.records = now, .baseline = before, .baseline_name = "monday.jsonl"});
  EXPECT_NE(same.facts[0].name, "regression");
  EXPECT_EQ(same.verdicts.back(), section(same, "regressions").notes[0]);
  for (size_t n = 0; n < now.size(); ++n) {  // all rows slower, each within the spread of a loud machine
    for (double& ns : now[n].samples_ns) ns *= 1.2;
    now[n].median_ns *= 1.2, now[n].aa_spread = before[n].aa_spread = 0.5;
  }
  const Report all = make_report({.records = now, .baseline = before, .baseline_name = "monday.jsonl"});
  EXPECT_EQ(all.facts[0].value, "0.833x");
  EXPECT_EQ(all.facts[0].detail, "all 6 rows together are slower, though no row alone is");
  EXPECT_EQ(all.facts[0].tone, Tone::bad);
}

}  // namespace
}  // namespace attune
