// SPDX-License-Identifier: Apache-2.0
// What `attune compare` shows, and what it only counts.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/tool/spawn.h"
#include "tool/compare/write.h"

namespace attune {
namespace {

Record steady_row() {
  Record r;
  r.problem = "forward f32 b1 h8 q256 k256 d64 full", r.subject = "cpu_forward", r.mode = "warm", r.threads = 1;
  r.samples_ns.assign(30, 1000), r.parity.verdict = CheckVerdict::pass, r.aa_spread = 0;
  derive(r);
  return r;
}

TEST(CompareText, shows_changes_and_counts_the_rest) {
  const Record same = steady_row();
  Record slower = same, faster = same;
  slower.problem = "forward f32 b1 h8 q512 k512 d64 full", faster.problem = "forward f32 b1 h8 q128 k128 d64 full";
  Record slower_now = slower, faster_now = faster;
  slower_now.samples_ns.assign(30, 1500), faster_now.samples_ns.assign(30, 500);
  derive(slower_now), derive(faster_now);
  const Changes c = compare({same, slower, faster}, {same, slower_now, faster_now}, {});
  const std::string text = to_text(c);
  EXPECT_LT(text.find("SLOWER"), text.find("FASTER")) << text;
  EXPECT_TRUE(has(text, "1 row is SAME, not shown; --all shows it\n")) << text;
  EXPECT_FALSE(has(text, "\nSAME ")) << text;
  EXPECT_TRUE(has(to_text(c, {.all = true}), "\nSAME ")) << to_text(c, {.all = true});
  const std::string by_problem = to_text(c, {.order = RowOrder::problem});
  EXPECT_LT(by_problem.find("FASTER"), by_problem.find("SLOWER")) << by_problem;
  const std::string filtered = to_text(c, {.filter = "q512"});
  EXPECT_TRUE(has(filtered, "2 rows left out by --filter\n")) << filtered;
  EXPECT_FALSE(has(filtered, "FASTER  ")) << filtered;
}

TEST(CompareCommand, records_without_samples_say_so) {
  Record bare = steady_row();
  const std::string whole = temporary("whole.jsonl");
  std::ofstream(whole) << to_json(bare) << "\n";
  const std::string text = text_of(whole);
  const size_t at = text.find("\"samples_ns\":["), end = text.find(']', at);
  const std::string path = temporary("bare.jsonl");
  std::ofstream(path) << text.substr(0, at) + "\"samples\":30" + text.substr(end + 1);
  const Ran r = attune_says({"compare", path, whole});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "bare.jsonl: the records hold medians without their samples")) << r.err;
}

}  // namespace
}  // namespace attune
