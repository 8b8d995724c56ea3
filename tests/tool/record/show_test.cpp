// SPDX-License-Identifier: Apache-2.0
// The text that the tool prints for a GPU row.
#include "tool/record/show.h"

#include <gtest/gtest.h>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

Record row() {
  Record r;
  r.problem = "forward bf16 b1 h1 q1 k64 d64 full", r.subject = "sm80_forward", r.mode = "cold", r.threads = 0;
  r.samples_ns.assign(30, 1000), r.samples_mhz.assign(30, 1755);
  r.flops = 2e6, r.bytes = 900e3, r.ceiling = "cuBLASLt bf16", r.ceiling_gflops = 8000, r.copy_gbs = 1000;
  r.parity.verdict = CheckVerdict::pass;
  derive(r);
  return r;
}

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++n;
  return n;
}

TEST(Show, names_the_nearer_ceiling) {
  Record r = row();
  EXPECT_TRUE(has(row_text(r), "2000 GFLOP/s, 90.0 % of copy")) << row_text(r);
  r.ceiling_gflops = 2100;
  EXPECT_TRUE(has(row_text(r), "2000 GFLOP/s, 95.2 % of cuBLASLt bf16")) << row_text(r);
  r.ceiling_gflops = 8000, r.mode = "warm";  // may come entirely from a cache
  EXPECT_TRUE(has(row_text(r), "25.0 % of cuBLASLt bf16")) << row_text(r);
}

TEST(Show, a_row_that_failed_while_it_was_timed_has_no_time) {
  Record r = row();
  r.samples_ns = {2000}, r.median_ns = r.gflops = 0, r.interval = {}, r.status = RecordStatus::failed;
  EXPECT_TRUE(has(row_text(r), " | cold | - | failed")) << row_text(r);
}

TEST(Show, says_what_a_gpu_was_like) {
  Record r = row();
  r.floor_ns = 300, r.slowed_by = "power cap", r.watts = 690.4, r.late_batches = 1;
  r.joules = 0.0123, r.sustained_watts = 650, r.sustained_ns = 1100;
  derive(r);
  EXPECT_TRUE(has(row_text(r), "launch-bound, slowed by power cap, some times include launches, 1755 MHz, 690 W, "
                               "12.3 mJ per call, 650 W and 1.10 us sustained"))
      << row_text(r);
  r.threads = 1;
  EXPECT_TRUE(has(row_text(r), "near the floor of a call")) << row_text(r);
}

TEST(Show, a_row_of_a_busy_machine_says_so) {
  Record r = row();
  r.threads = 2, r.load = {.seconds = 2, .cpus = 2, .waited = 0.4, .others = 0.48};
  EXPECT_TRUE(has(row_text(r), "busy: other processes took 48 % of 2 CPUs, threads waited for a CPU 40 % of the time"))
      << row_text(r);
  r.load.waited = r.load.others = 0.01;
  EXPECT_FALSE(has(row_text(r), "busy")) << row_text(r);
}

TEST(Show, an_unclear_row_names_the_spread_that_makes_it_so) {
  Record r = row();
  r.baseline = "cpu_standard", r.verdict = "UNCLEAR", r.aa_spread = 4.05;
  EXPECT_TRUE(has(row_text(r), "A/A spread 405.0 %")) << row_text(r);
  EXPECT_EQ(count(row_text(r), "A/A spread"), 1) << row_text(r);
  r.aa_spread = 0.05;
  EXPECT_FALSE(has(row_text(r), "A/A spread")) << row_text(r);
  r.aa_spread = 4.05, r.verdict = "FASTER";
  EXPECT_FALSE(has(row_text(r), "A/A spread")) << row_text(r);
}

TEST(Show, rested_and_hot_rows_are_told_apart) {
  Record rested = row(), hot = row();
  rested.rest_s = 0.15, hot.heat_s = 0.04;
  EXPECT_TRUE(has(row_text(row()), "| cold | ")) << row_text(row());
  EXPECT_TRUE(has(row_text(rested), "| cold, rested 150 ms | ")) << row_text(rested);
  const std::string text = table({rested, rested, hot});
  EXPECT_EQ(count(text, "rested 150 ms"), 2) << text;
  EXPECT_EQ(count(text, "cold, hot 40 ms"), 1) << text;
  EXPECT_EQ(count(text, "forward bf16 b1 h1 q1 k64 d64 full"), 1) << text;
}

TEST(Show, a_missing_peer_and_a_note_are_in_the_table) {
  Record ours = row(), peer = row(), missing = row();
  peer.subject = "torch:efficient", peer.note = "expanded";
  missing = {}, missing.problem = ours.problem, missing.subject = "fa3", missing.status = RecordStatus::unsupported;
  missing.message = "fa3: is not here: no module", missing.threads = 0, missing.mode = "cold";
  ours.baseline = "torch:efficient", ours.verdict = "SAME", ours.ratio.interval.confidence = 0.95;
  const std::string text = table({peer, missing, ours});
  EXPECT_TRUE(has(text, "1755 MHz, expanded")) << text;
  EXPECT_TRUE(has(text, "\nunsupported  fa3 ")) << text;
  EXPECT_TRUE(has(text, "  fa3: is not here: no module\n")) << text;
  EXPECT_TRUE(has(text, "forward bf16 b1 h1 q1 k64 d64 full, cold\n")) << text;
  EXPECT_TRUE(has(row_text(ours), "SAME against torch:efficient")) << row_text(ours);
}

TEST(Show, what_few_samples_cannot_decide_says_why) {
  Record r = row();
  r.baseline = "torch:efficient", r.verdict = "FASTER", r.ratio = {2, {1.9, 2.1, 0.75}};  // as version 2 wrote it
  r.samples_ns.resize(3), r.interval.confidence = 0.75;
  EXPECT_TRUE(has(row_text(r), " at 75 % | ")) << row_text(r);
  EXPECT_TRUE(has(row_text(r), "UNCLEAR against torch:efficient | only 3 samples")) << row_text(r);
}

// The output on stderr.
std::string shown(bool live) {
  Record first = row(), second = row();
  first.subject = "one_backend", second.subject = "another_backend";
  testing::internal::CaptureStderr();
  Progress p(live, 100, 4);
  p.begin("the row", 50, 1000);
  p.share(0.5, 1010);     // a quarter of the total after ten seconds
  p.share(0.6, 1010.05);  // too soon to be read
  p.clear();
  p.end({first, second});
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, on_a_terminal_says_share_row_and_time_left_below_a_table_that_grows) {
  const std::string text = shown(true);
  EXPECT_TRUE(has(text, "\xfe" "e[ 25 %] 1/4 the row 0:30 left")) << text;
  EXPECT_EQ(count(text, " left"), 1) << text;
  const size_t cleared = text.rfind("\xfe" "e"), table = text.find("one_backend");
  ASSERT_NE(table, text.npos) << text;
  EXPECT_LT(cleared, table) << text;  // the overwritten line is cleared first
  EXPECT_LT(table, text.find("another_backend")) << text;
  EXPECT_EQ(count(text, row().problem), 1) << text;  // once for all of its subjects
}

TEST(Progress, elsewhere_it_is_one_line_a_record) {
  const std::string text = shown(false);
  EXPECT_FALSE(has(text, "\x1b")) << text;
  EXPECT_FALSE(has(text, "left")) << text;
  EXPECT_EQ(count(text, "\n"), 2) << text;
  EXPECT_EQ(count(text, row().problem), 2) << text;
}

}  // namespace
}  // namespace attune
