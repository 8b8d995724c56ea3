// SPDX-License-Identifier: Apache-2.0
#include "tool/record/plot.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

Record at(int length, const char* subject, double ns) {
  Record r;
  r.problem = join("forward f32 b", 4096 / length, " h8 q", length, " k", length, " d64 causal");
  r.subject = subject, r.samples_ns = {ns, ns, ns};
  derive(r);
  return r;
}

TEST(Plot, draws_each_subject_at_each_length_and_names_the_axes) {
  const std::string text = plot({at(512, "ours", 1e6), at(1024, "ours", 2e6), at(2048, "ours", 4e6),
                                 at(512, "theirs", 2e6), at(2048, "theirs", 16e6)},
                                40, 9);
  EXPECT_TRUE(has(text, "forward f32 h8 d64 causal, warm, 1 thread\n")) << text;
  EXPECT_TRUE(has(text, " 16.0 ms |")) << text;
  EXPECT_TRUE(has(text, " 1.00 ms |a")) << text;  // the shortest: lowest line, leftmost
  EXPECT_TRUE(has(text, "a ours   b theirs")) << text;
  for (const char* tick : {"512", "1024", "2048 keys"}) EXPECT_TRUE(has(text, tick)) << text;
  const size_t first = text.find('|'), legend = text.find("a ours");
  EXPECT_EQ(std::count(text.begin() + long(first), text.begin() + long(legend), 'a'), 3) << text;
}

TEST(Plot, has_nothing_to_draw_of_one_length_or_of_failures) {
  Record bad = at(1024, "ours", 1e6);
  bad.status = RecordStatus::failed;
  EXPECT_EQ(plot({at(512, "ours", 1e6), bad}), "");
  EXPECT_EQ(plot({}), "");
}

TEST(Plot, the_command_draws_when_asked) {
  const Ran r =
      attune_says({"bench", "--len", "16,32", "--dim", "16", "--heads", "1", "--max-seconds", "0.02", "--plot"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "forward f32 h1 d16 full, warm")) << r.out;
  EXPECT_TRUE(has(r.out, "a cpu_forward")) << r.out;
}

TEST(Plot, of_one_length_says_that_there_is_nothing_to_plot) {
  const Ran r =
      attune_says({"bench", "--len", "16", "--dim", "16", "--heads", "1", "--max-seconds", "0.02", "--plot"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(r.out.ends_with("nothing to plot: no problem was measured at two lengths\n")) << r.out;
}

}  // namespace
}  // namespace attune
