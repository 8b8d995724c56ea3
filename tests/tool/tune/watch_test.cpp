// SPDX-License-Identifier: Apache-2.0
// Live calls become rules: what is read from a log, once and while it grows, and how watching ends.
#include "tool/tune/watch.h"

#include <gtest/gtest.h>

#include <csignal>

#include "machine/host.h"
#include "tests/tool/spawn.h"
#include "tool/record/record.h"

namespace attune {
namespace {

TEST(TuneWatch, a_line_of_the_log_names_problem_and_device) {
  LoggedCall call;
  ASSERT_TRUE(read_call("attune: forward f32 b1 h8 q64 k64 d64 full -> cpu_forward on Neoverse-V1: first", call));
  EXPECT_EQ(call.problem, "forward f32 b1 h8 q64 k64 d64 full");
  EXPECT_EQ(call.device, "Neoverse-V1");
  for (const char* line : {"", "attune: ", "attune: nonsense -> x on y: z", "epoch 3", "attune: forward f32 -> x"})
    EXPECT_FALSE(read_call(line, call)) << line;
}
TEST(TuneWatch, live_calls_become_rules_once) {
  const std::string log = temporary("calls.log"), records = temporary("live_calls.jsonl"), out = temporary("live.tsv");
  std::ofstream(log) << "epoch 1\nattune: forward f32 b1 h1 q32 k32 d64 full -> cpu_forward on " << this_cpu().name
                     << ": first in the list\n"
                     << "attune: forward f32 b1 h1 q32 k32 d64 full -> cpu_forward on Elsewhere: x\n";
  Ran r = attune_says({"tune", records, "--watch", log, "--once", "--out", out});
  EXPECT_EQ(r.code, 0) << r.err;
  std::vector<Record> made;
  ASSERT_TRUE(read_records(records, made).ok());
  EXPECT_GE(made.size(), 1u);
  EXPECT_TRUE(has(text_of(out), "# key\tforward f32 d64 full heads 1-16")) << text_of(out);
  r = attune_says({"tune", records, "--watch", log, "--once", "--out", out});
  std::vector<Record> again;
  ASSERT_TRUE(read_records(records, again).ok());
  EXPECT_EQ(again.size(), made.size()) << "a problem is measured once";
}

std::vector<std::string> problems_of(const std::string& path) {
  std::vector<Record> records;
  if (!std::filesystem::exists(path) || !read_records(path, records).ok()) return {};
  std::vector<std::string> all;
  for (const Record& r : records)
    if (all.empty() || all.back() != r.problem) all.push_back(r.problem);
  return all;
}

TEST(TuneWatch, a_log_that_grows_is_followed_until_a_signal) {
  const std::string log = temporary("growing.log"), records = temporary("growing.jsonl");
  const std::string out = temporary("growing.tsv");
  const std::string first = "forward f32 b1 h1 q24 k24 d64 full", second = "forward f32 b1 h1 q48 k48 d64 full";
  const std::string end = " -> cpu_forward on " + this_cpu().name + ": first in the list\n";
  const auto write = [&](const std::string& text) { std::ofstream(log, std::ios::app) << text; };
  const auto rules_have = [&](const char* row) { return has(text_of(out), row); };
  write("attune: " + first.substr(0, 20));  // the rest is not written yet
  for (const int signal : {SIGINT, SIGTERM}) {
    Background watching({"tune", records, "--watch", log, "--out", out});
    if (signal == SIGINT) {
      usleep(1'500'000);  // by then it would have read the half line
      write(first.substr(20) + end);
      ASSERT_TRUE(comes([&] { return rules_have(" q24 k24 "); })) << watching.says();
      EXPECT_EQ(problems_of(records), std::vector<std::string>{first});
      write("epoch 2\nattune: " + second + end);
      ASSERT_TRUE(comes([&] { return rules_have(" q48 k48 "); })) << watching.says();
    } else {  // another process continues with the same files and measures nothing again
      write("attune: " + first + end + "attune: forward f32 b1 h1 q40 k40 d64 full" + end);
      ASSERT_TRUE(comes([&] { return rules_have(" q40 k40 "); })) << watching.says();
    }
    EXPECT_EQ(watching.ends(signal), 0) << watching.says();
  }
  EXPECT_EQ(problems_of(records), (std::vector<std::string>{first, second, "forward f32 b1 h1 q40 k40 d64 full"}));
}

TEST(TuneWatch, a_log_without_a_problem_says_so) {
  const std::string log = temporary("empty.log");
  std::ofstream(log) << "epoch 1\nattune: forward f32 b1 h1 q32 k32 d64 full softcap -> cpu_forward on "
                     << this_cpu().name << ": no rule is for options\n";
  const Ran r = attune_says({"tune", temporary("none.jsonl"), "--watch", log, "--once", "--out", temporary("x.tsv")});
  EXPECT_EQ(r.code, 3);
  EXPECT_EQ(r.err, "attune tune: --watch: " + log + " has no problem that rules can cover\n");
}

}  // namespace
}  // namespace attune
