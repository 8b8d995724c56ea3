// SPDX-License-Identifier: Apache-2.0
// Rows across lines: counterparts, speed-ups over any base, and implementations ranked by speed and by memory.
#include "tool/record/ranking.h"

#include <gtest/gtest.h>

#include "tests/tool/records.h"
#include "tool/record/show.h"
#include "tool/report/model.h"

namespace attune {
namespace {

Record row(const std::string& problem, const std::string& subject, double ns, uint64_t workspace = 0,
           const std::string& pattern = "") {
  Record r = record(subject, 64, ns);
  r.problem = problem, r.pattern = pattern, r.workspace_bytes = workspace, r.tensor_bytes = 1000;
  return r;
}

constexpr const char* kNsa = " : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512";

// Two sizes; all of attention by two backends, and six other ways of the same sizes.
std::vector<Record> rows() {
  std::vector<Record> all;
  for (const int n : {2048, 4096}) {
    const auto line = [&](int rows_of_it, const std::string& tail) {
      return join("forward bf16 b1 h16/4 q", rows_of_it, " k", rows_of_it, " d128 ", tail);
    };
    const double unit = 1e3 * n;
    all.push_back(row(line(n, "causal"), "sm90_forward", 4 * unit));
    all.push_back(row(line(n, "causal"), "cuda_standard", 12 * unit, 9000));
    all.push_back(row(line(n, "causal") + kNsa, "nsa", unit, 1000));
    all.push_back(row(line(n, "causal : dilated rates=1,2 segments=1024,2048"), "dilated", 2 * unit, 3000));
    all.push_back(row(line(n, "causal blocks64x64x99"), "sm90_forward", unit / 2, 0, "random density=0.1"));
    all.push_back(row(line(n / 2, join("causal : ring layout=zigzag ranks=2 tokens=", n)), "ring_rotate", 8 * unit));
    all.push_back(row(line(n, "window127,0"), "sm90_forward", unit / 4));
  }
  return all;
}

TEST(Counterparts, are_the_fastest_dense_rows_of_the_same_sizes) {
  const std::vector<Record> all = rows();
  const std::vector<Counterpart> found = counterparts(all);
  ASSERT_EQ(found.size(), all.size());
  for (size_t n = 0; n < all.size(); ++n) {
    if (n % 7 < 2) {
      EXPECT_FALSE(found[n].base) << "a dense row has its own baseline: " << all[n].problem;
      continue;
    }
    ASSERT_TRUE(found[n].base) << all[n].problem;
    EXPECT_EQ(found[n].base, &all[n / 7 * 7]) << all[n].problem;
    EXPECT_NEAR(found[n].ratio.value, all[n / 7 * 7].median_ns / all[n].median_ns, 1e-6);
  }
}

TEST(Counterparts, are_any_that_is_named) {
  const std::vector<Record> all = rows();
  for (const char* const base : {"dilated", "dilated rates=1,2 segments=1024,2048"})
    EXPECT_EQ(counterparts(all, base)[2].base, &all[3]) << base;
  EXPECT_EQ(counterparts(all, "window127,0")[0].base, &all[6]);
  EXPECT_EQ(counterparts(all, "cuda_standard")[0].base, &all[1]);
  EXPECT_EQ(counterparts(all, "sm90_forward: random density=0.1")[9].base, &all[11]);
  EXPECT_FALSE(counterparts(all, "toaster")[0].base);
}

TEST(Counterparts, of_other_sizes_passes_timings_or_failures_are_none) {
  std::vector<Record> all = rows();
  all.resize(3);
  all[0].mode = all[1].mode = "cold";
  EXPECT_FALSE(counterparts(all)[2].base);
  all = rows(), all.resize(3);
  all[0].status = all[1].status = RecordStatus::failed;
  EXPECT_FALSE(counterparts(all)[2].base);
  all = rows(), all.resize(3);
  all[2].problem.replace(0, 7, "backward");
  EXPECT_FALSE(counterparts(all)[2].base);
  all = rows();
  EXPECT_FALSE(counterparts({all[0], all[9]}).back().base) << "4096 tokens have no dense row here";
}

TEST(Counterparts, of_a_module_are_modules) {
  const auto module = [](int tokens, const std::string& tail, double ns) {
    return row(join("forward multihead f16 b1 s", tokens, " e512 h8 norm=1 | causal", tail), "attune", ns);
  };
  const std::vector<Record> all = {module(2048, "", 100), module(2048, " : dilated rates=1 segments=64", 50),
                                   module(2048, " | 64x64 random density=0.1", 25),
                                   module(512, " : ring layout=zigzag ranks=4 tokens=2048", 200),
                                   row("forward f16 b1 h8 q2048 k2048 d64 causal", "sm90_forward", 10),
                                   row("forward llama f16 b1 s2048 e512 h8 | causal", "attune", 10)};
  const std::vector<Counterpart> found = counterparts(all);
  for (size_t n = 0; n < all.size(); ++n) EXPECT_EQ(found[n].base, n && n < 4 ? &all[0] : nullptr) << n;
  EXPECT_EQ(what_of(all[3]), "multihead ring layout=zigzag ranks=4");
  const std::vector<Ranking> ranked = rankings(all);
  ASSERT_EQ(ranked.size(), 1u);
  EXPECT_TRUE(ranked[0].title.ends_with(", modules"));
  EXPECT_EQ(ranked[0].all[0].name, "multihead 64x64 random density=0.1");
  EXPECT_NEAR(ranked[0].all[0].speed_up, 4, 1e-6);
}

TEST(Rankings, order_implementations_by_speed_and_by_memory) {
  const std::vector<Ranking> all = rankings(rows());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].title, "forward, warm, Test CPU, 2 threads");
  EXPECT_EQ(all[0].sizes, 2);
  std::vector<std::string> names;
  for (const Ranked& r : all[0].all) {
    EXPECT_EQ(r.rows, 2);
    names.push_back(r.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "sm90_forward: window127,0", "sm90_forward: random density=0.1",
                       "nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512",
                       "dilated rates=1,2 segments=1024,2048", "sm90_forward: dense",
                       "ring_rotate: ring layout=zigzag ranks=2", "cuda_standard: dense"}));
  const Ranked &nsa = all[0].all[2], &standard = all[0].all[6];
  EXPECT_NEAR(nsa.speed_up, 4, 1e-6);
  EXPECT_NEAR(nsa.memory, 0.5, 1e-9);
  EXPECT_EQ(nsa.by_memory, 5) << "behind four that take nothing";
  EXPECT_EQ(standard.by_memory, 7);
  EXPECT_TRUE(all[0].all[4].is_base);
  EXPECT_FALSE(nsa.is_base);
  EXPECT_NEAR(rankings(rows(), "nsa")[0].all[0].speed_up, 4, 1e-6) << "a window against NSA";
  const std::string text = ranking_text(all);
  EXPECT_NE(text.find("against the fastest dense row of each size, 2 sizes\n"), std::string::npos) << text;
}

TEST(Rankings, of_one_way_only_are_none) {
  std::vector<Record> all = rows();
  all.resize(2);
  EXPECT_TRUE(rankings(all).empty());
  EXPECT_EQ(ranking_text({}), "");
}

// The table of bench, Markdown and the page show the same.
TEST(Rankings, are_in_the_table_of_bench_in_markdown_and_in_html) {
  const std::string bench = table(rows());
  EXPECT_NE(bench.find("against its counterpart"), std::string::npos);
  EXPECT_NE(bench.find("4.00x sm90_forward"), std::string::npos) << bench;
  EXPECT_EQ(table({rows()[0]}).find("against its counterpart"), std::string::npos);
  const Report report = make_report({.records = rows()});
  const Section* const section = find_section(report, "ranking");
  ASSERT_TRUE(section);
  ASSERT_EQ(section->figures.size(), 2u);
  EXPECT_EQ(section->figures[0].table.rows.size(), 7u);
  EXPECT_EQ(section->figures[1].table.rows.size(), 10u) << "dense rows have none";
  for (const std::string& text : {to_markdown(report), to_html(report)})
    for (const char* part : {"Implementations across lines", "ring layout=zigzag ranks=2", "4.00x", "0.500x"})
      EXPECT_NE(text.find(part), std::string::npos) << part;
  const Report other = make_report({.records = rows(), .base = "nsa"});
  EXPECT_EQ(find_section(other, "ranking")->figures[0].title, "forward, warm, Test CPU, 2 threads, against nsa");
  EXPECT_FALSE(find_section(make_report({.records = {rows()[0]}}), "ranking"));
}

}  // namespace
}  // namespace attune
