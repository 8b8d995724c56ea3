// SPDX-License-Identifier: Apache-2.0
// What distinguishes report rows with the same problem line, and where they come from.
#include <gtest/gtest.h>

#include "tests/tool/report/reports.h"
#include "tests/tool/spawn.h"
#include "tool/report/model.h"

namespace attune {
namespace {

Record record(int length, double ratio) {
  Record r;
  r.problem = join("forward f32 b1 h8 q", length, " k", length, " d64 causal"), r.subject = "cpu_forward";
  r.threads = 2, r.median_ns = 10. * length, r.interval = {9.9 * length, 10.1 * length, 0.95};
  r.samples_ns.assign(30, r.median_ns), r.flops = 1e3 * length, r.gflops = r.flops / r.median_ns;
  r.parity = {.verdict = CheckVerdict::pass, .error = 0.1, .rows = 8};
  r.baseline = "torch:sdpa", r.ratio = {ratio, {ratio * 0.98, ratio * 1.02, 0.95}};
  r.verdict = ratio > 1 ? "FASTER" : "SLOWER";
  return r;
}

// Two patterns with the same bound share a problem line, but are different problems.
TEST(Report, patterns_are_families_with_a_density) {
  std::vector<Record> records;
  for (const char* pattern : {"random density=1 seed=1", "hierarchical"})
    for (const int length : {512, 1024}) {
      Record r = record(length, *pattern == 'r' ? 2.0 : 0.5);
      r.problem += join(" blocks64x64x", length / 8), r.pattern = pattern;
      r.shown_blocks = 100, r.active_blocks = *pattern == 'r' ? 100 : 37, r.density = double(r.active_blocks) / 100;
      records.push_back(r);
    }
  const Report report = report_of(records);
  const auto& figures = section(report, "lengths").figures;
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].title, "forward f32 b1 h8 d64 causal blocks64x64x1 | random density=1 seed=1");
  EXPECT_EQ(figures[1].title, "forward f32 b1 h8 d64 causal blocks64x64x1 | hierarchical");
  const Figure& against = section(report, "against").figures.at(0);
  const HeatMap& map = std::get<HeatMap>(against.plots.at(0).drawing);
  ASSERT_EQ(map.rows.size(), 2u);
  EXPECT_DOUBLE_EQ(map.cells[0][0].ratio, 2.0);
  EXPECT_DOUBLE_EQ(map.cells[1][0].ratio, 0.5);
  EXPECT_EQ(against.table.rows[2][0].text, "forward f32 b1 h8 q512 k512 d64 causal blocks64x64x64 | hierarchical");
  const Table& all = section(report, "rows").figures[0].table;
  EXPECT_EQ(all.head.back(), "density");
  EXPECT_EQ(all.rows[2].back().text, "0.370");
  EXPECT_TRUE(has(to_csv(records), ",no,hierarchical,0.37,37,100,,,,,")) << to_csv(records);
  EXPECT_NE(section(report_of({record(512, 2)}), "rows").figures[0].table.head.back(), "density");
}

// A map has room for few letters on a phone.
TEST(Report, a_map_says_once_what_all_its_rows_share) {
  std::vector<Record> records = {record(512, 2), record(512, 2), record(512, 2)};
  records[1].problem = "forward f32 b1 h16 q512 k512 d64 causal";
  records[2].problem = "forward f32 b1 h8 q512 k512 d128 causal";
  const Report three = report_of(records);
  const Plot& plot = section(three, "against").figures.at(0).plots.at(0);
  EXPECT_EQ(plot.caption, "forward f32 b1 causal");
  EXPECT_EQ(std::get<HeatMap>(plot.drawing).rows, (std::vector<std::string>{"h8 d64", "h16 d64", "h8 d128"}));
  records.resize(1);
  const Report single = report_of(records);
  EXPECT_EQ(std::get<HeatMap>(section(single, "against").figures.at(0).plots.at(0).drawing).rows,
            std::vector<std::string>{"forward f32 b1 h8 d64 causal"});
}

// A row of another subject; without a ratio it is the baseline.
Record row_of(const char* subject, int length, double ratio = 0) {
  Record r = record(length, ratio);
  r.subject = subject;
  if (ratio == 0) r.baseline.clear(), r.verdict.clear();
  return r;
}

TEST(Report, is_about_ours_and_says_behind_them_how_peers_stand) {
  std::vector<Record> records;
  for (const int length : {512, 1024, 2048, 4096}) {
    records.push_back(row_of("fa3", length, 0.3));
    records.back().peer = true;
  }
  for (const int length : {512, 1024, 2048})
    records.push_back(row_of("torch:sdpa", length)), records.push_back(row_of("cpu_forward", length, 0.5));
  const Report r = report_of(records);
  EXPECT_TRUE(r.verdicts[0].starts_with("cpu_forward against torch:sdpa: ")) << r.verdicts[0];
  EXPECT_TRUE(r.verdicts[1].starts_with("fa3 against torch:sdpa: ")) << r.verdicts[1];
  EXPECT_EQ(r.facts.front().detail, "cpu_forward, geometric mean of 3 problems");
  EXPECT_EQ(r.facts.front().value, "0.500x");
  const Section& heat = section(r, "against");
  ASSERT_EQ(heat.figures.size(), 2u);
  EXPECT_EQ(heat.figures[0].title, "cpu_forward against torch:sdpa");
}

TEST(Report, of_two_of_ours_the_faster_one_is_the_headline) {
  std::vector<Record> records = {row_of("cpu_forward", 512), row_of("cpu_standard", 512, 0.25)};
  records[1].baseline = "cpu_forward";
  const Fact ours = report_of(records).facts.front();
  EXPECT_EQ(ours.value + " " + ours.name, "4.00x as fast as cpu_standard");
  EXPECT_EQ(ours.detail, "cpu_forward, geometric mean of 1 problem");
  EXPECT_EQ(ours.tone, Tone::good);
  records[0].subject = records[1].baseline = "torch:sdpa";  // slower than a peer is reported as such
  const Fact slower = report_of(records).facts.front();
  EXPECT_EQ(slower.value + " " + slower.name, "0.250x as fast as torch:sdpa");
  EXPECT_EQ(slower.tone, Tone::bad);
}

TEST(Report, provenance_has_clocks_and_binary) {
  Record r = record(512, 2);
  r.provenance.clocks = "governor performance", r.provenance.binary = "e14c9a5c96a70e70";
  const std::string page = to_markdown(report_of({r}));
  EXPECT_TRUE(has(page, "| clocks | binary |")) << page;
  EXPECT_TRUE(has(page, "| governor performance | e14c9a5c96a70e70 |")) << page;
}

}  // namespace
}  // namespace attune
