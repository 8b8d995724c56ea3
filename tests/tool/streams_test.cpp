// SPDX-License-Identifier: Apache-2.0
// What a shell, a script or a supervisor may start the command with: closed streams, no words at all, odd values.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tool/spawn.h"
#include "tool/commands/commands.h"

namespace attune {
namespace {

const std::string kAttune = ATTUNE_BUILD_DIR "/attune";

Ran shell(const std::string& line) { return spawn({"sh", "-c", line}); }

// The next file that is opened takes the number of a closed stream, and what is printed goes into it.
TEST(Streams, a_closed_stdout_or_stderr_writes_into_no_file) {
  const std::string records = temporary("closed.jsonl"), page = temporary("closed.html");
  const std::string bench =
      join(kAttune, " bench 'forward f32 b1 h1 q8 k8 d8 full' --seed 1 --max-seconds 0.01 --out ", records);
  const Ran out = shell(bench + " >&-");
  EXPECT_EQ(out.code, 3) << out.err;
  EXPECT_TRUE(has(out.err, "attune: stdout cannot be written\n")) << out.err;
  EXPECT_EQ(shell(bench + " 2>&-").code, 0);
  EXPECT_EQ(shell(bench + " --dry-run --resume 2>&-").code, 0);
  EXPECT_EQ(shell(bench + " >&- 2>&- <&-").code, 3);
  const Ran verified = attune_says({"verify", records});
  EXPECT_EQ(verified.code, 0) << verified.out << text_of(records);
  EXPECT_TRUE(has(verified.out, ": 3 records, 0 wrong")) << verified.out;
  EXPECT_EQ(shell(join(kAttune, " report ", records, " --out ", page, " >&-")).code, 3);
  EXPECT_TRUE(text_of(page).starts_with("<!")) << text_of(page).substr(0, 80);
}

TEST(Streams, a_stderr_that_cannot_be_written_ends_nothing) {
  const std::string bench = kAttune + " bench 'forward f32 b1 h1 q8 k8 d8 full' 'forward f32 b1 h1 q9 k9 d8 full' "
                                      "--seed 1 --max-seconds 0.01 --json --out ";
  const std::string records = temporary("full.jsonl");
  const Ran r = shell(bench + records + " 2>/dev/full");
  EXPECT_EQ(r.code, 0) << "only what a run says beside its answer is lost";
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 2);
  EXPECT_EQ(shell(bench + records + " --resume 2>/dev/full").code, 0);
  EXPECT_EQ(shell(kAttune + " bench --nothing 2>/dev/full").code, 2);
  EXPECT_EQ(shell(kAttune + " verify /nowhere 2>/dev/full").code, 3);
}

TEST(Streams, a_closed_stdin_is_empty) {
  const Ran r = shell(kAttune + " report - <&-");
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_TRUE(has(r.err, "no records")) << r.err;
}

TEST(Words, none_at_all_is_wrong_usage) {
  char* none[] = {nullptr};
  testing::internal::CaptureStderr();
  EXPECT_EQ(attune_tool_main(0, none), 2);
  EXPECT_TRUE(has(testing::internal::GetCapturedStderr(), "no command given"));
}

TEST(Words, a_line_break_in_a_value_is_refused_in_one_line) {
  const std::string odd = temporary("two\nlines.jsonl");
  std::ofstream(odd) << "x\n";
  for (const auto& words : {std::vector<std::string>{"report", odd}, {"store", "a.jsonl", "--db", odd},
                            {"store", "a.jsonl", "--baseline", "a\nb"}, {"bench", "--out=" + odd},
                            {"plan", "forward f32\rb1"}, {"one\ntwo"}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2) << words[0];
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(has(r.err, "\\u000")) << r.err;
  }
  const std::string config = temporary("odd.toml");
  std::ofstream(config) << "out = \"a\\nb\"\n";
  const Ran r = attune_says({"bench", "--config", config});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.err, join("attune bench: ", config, ":1: out: the text has a line break\n"));
}

TEST(Words, the_name_of_a_baseline_is_one_word_wherever_it_is_kept) {
  for (const char* const name : {"../../x", "a b", ".hidden", "a/b"}) {
    const Ran stored = attune_says({"store", "a.jsonl", "--db", temporary("names.db"), "--baseline", name});
    EXPECT_EQ(stored.code, 2);
    EXPECT_EQ(stored.err, join("attune store: baseline '", name, "': a name has letters, digits, '.', '_' and '-', "
                               "and does not begin with '.'\n"));
  }
  EXPECT_FALSE(std::filesystem::exists(temporary("names.db")));
}

}  // namespace
}  // namespace attune
