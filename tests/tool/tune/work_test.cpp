// SPDX-License-Identifier: Apache-2.0
// Rules by work: cases where batch x heads x keys, rather than the keys alone, decides which of two backends is faster.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"
#include "tool/tune/file.h"

namespace attune {
namespace {

// 4 and 16 heads, 256 ... 2048 keys: cpu_selected takes `share` of cpu_forward's time if `wins` is true, and 1.2 of it
// otherwise; cpu_standard, the baseline, takes three times as long.
template <class Wins>
std::vector<Record> measured(const Wins& wins, double share = 0.9) {
  std::vector<Record> all;
  for (const int heads : {4, 16})
    for (int length = 256; length <= 2048; length *= 2) {
      const double ns = 100.0 * heads * length;
      all.push_back(record("cpu_forward", length, ns, heads));
      all.push_back(record("cpu_selected", length, ns * (wins(heads, length) ? share : 1.2), heads));
      all.push_back(record("cpu_standard", length, 3 * ns, heads));
    }
  return all;
}
bool by_work(int heads, int length) { return heads * length == 4096 || heads * length == 8192; }

TunedFile tuned(const std::vector<Record>& records, const std::vector<Rule>& before = {}) {
  return tune(gather(records, {}).devices.at(0), before, {});
}
std::string rules(const TunedFile& f) {
  std::string s;
  for (const Rule& r : f.rules()) {
    s += join(s.empty() ? "" : ", ", r.min_len, r.min_work ? join(" work ", r.min_work) : "", " ", r.backend);
  }
  return s;
}
constexpr const char* kByWork = "256 cpu_forward, 256 work 2897 cpu_selected, 256 work 11586 cpu_forward";

TEST(TuneWork, where_it_explains_the_rows_better_than_length_rules_are_by_work) {
  const TunedFile f = tuned(measured(by_work));
  EXPECT_EQ(rules(f), kByWork);  // each change at the geometric mean of two measured works
  EXPECT_EQ(f.keys.at(0).sentence,
            "against cpu_standard, margin 20 %: cpu_forward from 256, cpu_selected from 256; between them by work");
  for (const auto& [line, backend] : {std::pair("forward f32 b2 h4 q512 k512 d64 causal", "cpu_selected"),
                                      {"forward f32 b1 h12 q256 k256 d64 causal", "cpu_selected"},
                                      {"forward f32 b1 h12 q1024 k1024 d64 causal", "cpu_forward"},
                                      {"forward f32 b1 h2 q2048 k2048 d64 causal", "cpu_selected"},
                                      {"forward f32 b1 h2 q1024 k1024 d64 causal", "cpu_forward"}}) {
    Problem p;
    ASSERT_TRUE(parse(line, p).ok());
    const std::vector<Rule> all = f.rules();
    const Rule* const rule = match(p, all);
    ASSERT_TRUE(rule) << line;
    EXPECT_EQ(rule->backend, backend) << line;
  }
  Problem shorter;  // shorter than any measured, with enough work
  ASSERT_TRUE(parse("forward f32 b1 h16 q255 k255 d64 causal", shorter).ok());
  EXPECT_EQ(match(shorter, f.rules()), nullptr);
}

TEST(TuneWork, the_same_records_again_change_nothing_and_the_file_comes_back_whole) {
  const std::vector<Record> all = measured(by_work);
  const TunedFile f = tuned(all);
  TunedFile read;
  ASSERT_TRUE(from_text(to_text(f), "x.tsv", read).ok());
  EXPECT_EQ(to_text(read), to_text(f));
  EXPECT_EQ(to_text(tuned(all, read.rules())), to_text(f));
}

TEST(TuneWork, what_is_in_use_stays_until_another_is_faster_by_more_than_the_spread) {
  const std::vector<Rule> before = tuned(measured(by_work)).rules();
  // At 4096 it is 0.5 % faster: not enough to switch to it, nor to leave it.
  std::vector<Record> close = measured([](int heads, int length) { return heads * length == 4096; }, 0.995);
  for (Record& r : close)
    for (const int length : {1024, 2048})
      if (r.subject == "cpu_selected" && has(r.problem, join(" h16 q", length, " ")))
        r = record("cpu_selected", length, 70.0 * 16 * length, 16);
  EXPECT_EQ(rules(tuned(close)), "256 cpu_forward, 256 work 11586 cpu_selected");
  EXPECT_EQ(rules(tuned(close, before)), "256 cpu_forward, 256 work 2897 cpu_selected, 256 work 5793 cpu_forward, "
                                         "256 work 11586 cpu_selected");
}

TEST(TuneWork, where_length_says_as_much_rules_are_by_length) {
  EXPECT_EQ(rules(tuned(measured([](int, int length) { return length < 1024; }))),
            "256 cpu_selected, 1024 cpu_forward");
  std::vector<Record> one_count;
  for (const Record& r : measured(by_work))
    if (has(r.problem, " h16 ")) one_count.push_back(r);
  EXPECT_EQ(rules(tuned(one_count)), "256 cpu_selected, 1024 cpu_forward");
  one_count.clear();  // slightly faster everywhere, in total more than the spread
  for (const Record& r : measured([](int, int) { return true; }, 0.993))
    if (has(r.problem, " h16 ")) one_count.push_back(r);
  EXPECT_EQ(rules(tuned(one_count)), "256 cpu_forward");
}

TEST(TuneWork, what_is_within_the_spread_in_all_changes_nothing) {
  const auto everywhere = [](double share) { return rules(tuned(measured([](int, int) { return true; }, share))); };
  EXPECT_EQ(everywhere(0.999), "256 cpu_forward");
  EXPECT_EQ(everywhere(0.998), "256 cpu_selected");  // over 8 rows: 1.6 %
}

TEST(TuneWork, an_island_has_to_be_worth_two_changes) {
  const auto island = [](double share) {
    std::vector<Record> all = measured([](int heads, int length) { return heads * length < 2048; }, 0.7);
    for (Record& r : all)  // the only row with that work
      if (r.subject == "cpu_selected" && has(r.problem, " h16 q1024 "))
        r = record("cpu_selected", 1024, share * 100 * 16 * 1024, 16);
    return rules(tuned(all));
  };
  EXPECT_EQ(island(0.915), "256 cpu_selected, 256 work 1449 cpu_forward");
  EXPECT_EQ(island(0.9), "256 cpu_selected, 256 work 1449 cpu_forward, 256 work 11586 cpu_selected, "
                           "256 work 23171 cpu_forward");
}

TEST(TuneWork, changes_by_length_cost_as_much) {
  const auto at_512 = [](double share) {
    return rules(tuned(measured([](int, int length) { return length == 512; }, share)));
  };
  EXPECT_EQ(at_512(0.98), "256 cpu_forward");  // two changes for 2 % of two rows
  EXPECT_EQ(at_512(0.9), "256 cpu_forward, 512 cpu_selected, 1024 cpu_forward");
}

TEST(TuneWork, a_change_that_may_be_noise_is_none) {
  std::vector<Record> all = measured(by_work);
  for (Record& r : all)  // the same median with a wide interval
    if (r.subject == "cpu_selected")
      for (size_t n = 16; n < r.samples_ns.size(); ++n) r.samples_ns[n] *= 1.8;
  EXPECT_EQ(rules(tuned(all)), "256 cpu_forward");
}

TEST(TuneWork, what_may_not_be_used_at_every_length_keeps_its_threshold) {
  std::vector<Record> all = measured(by_work);
  for (Record& r : all)  // one row below the margin: not used before 512, whatever the work
    if (r.subject == "cpu_standard" && has(r.problem, " h4 q256 ")) r = record("cpu_standard", 256, 110 * 4 * 256, 4);
  const std::string text = rules(tuned(all));
  EXPECT_TRUE(text.starts_with("256 cpu_standard, 512 ")) << text;
  EXPECT_FALSE(has(text, "work")) << text;
  all = measured(by_work);  // a third backend, usable from 512 on and fastest at 1024
  for (const int heads : {4, 16})
    for (const auto& [length, ns] : {std::pair(256, 290.0), {512, 110.0}, {1024, 85.0}, {2048, 110.0}})
      all.push_back(record("cpu_gate", length, ns * heads * length, heads));
  EXPECT_EQ(rules(tuned(all)), "256 cpu_forward, 1024 cpu_gate, 2048 cpu_forward");
}

TEST(TuneWork, the_command_says_it) {
  const std::string records = temporary("work.jsonl");
  std::ofstream file(records);
  for (const Record& r : measured(by_work)) file << to_json(r) << "\n";
  file.close();
  const Ran r = attune_says({"tune", records, "--out", temporary("work.tsv"), "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto rules = nlohmann::json::parse(r.out)["devices"][0]["keys"][0]["rules"];
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[1]["work"], 2897);
  EXPECT_FALSE(rules[0].contains("work"));
}

}  // namespace
}  // namespace attune
