// User data is never lost: a command does not overwrite its own input, and a symlink stays a symlink.
#include "tool/files.h"

#include <gtest/gtest.h>

#include "machine/host.h"
#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

TEST(Files, are_apart_however_they_are_named) {
  const std::string one = temporary("one"), link = temporary("link"), two = temporary("two");
  std::ofstream(one) << "1";
  fs::create_symlink("one", link);
  EXPECT_EQ(are_apart({two, ""}, {one, "", link}).message, "");
  EXPECT_EQ(are_apart({link}, {one}).message, link + " is an input and would be overwritten");
  EXPECT_EQ(are_apart({temporary("./two")}, {two}).message,
            temporary("./two") + " is an input and would be overwritten");
  EXPECT_EQ(are_apart({two, temporary("./two")}, {}).message, temporary("./two") + " would be written twice");
  EXPECT_EQ(are_apart({"/dev/null", "/dev/null"}, {"/dev/null"}).message, "");
}

TEST(Files, a_link_that_is_replaced_stays_one) {
  const std::string real = temporary("real"), first = temporary("first"), second = temporary("second");
  fs::create_symlink("real", first);
  fs::create_symlink(first, second);
  for (const char* const text : {"new", "newer"}) {  // absent at first
    ASSERT_EQ(replace_file(second, text).message, "");
    EXPECT_TRUE(fs::is_symlink(first) && fs::is_symlink(second));
    EXPECT_EQ(text_of(real), text);
  }
  EXPECT_EQ(text_of(real + ".before"), "new");
}

TEST(Files, a_folder_is_no_file) {
  std::string text;
  EXPECT_EQ(read_file("/", text).message, "'/' cannot be read: Is a directory");
  EXPECT_EQ(read_whole("/", text).message, "'/' cannot be read: Is a directory");
  EXPECT_EQ(read_whole("/nowhere/at/all", text).message, "");
}

TEST(Report, writes_over_nothing_that_it_reads_and_tells_of_an_unfinished_line) {
  const std::string in = temporary("records.jsonl"), page = temporary("page.html");
  std::ofstream(in) << to_json(record("cpu_forward", 512, 1000)) << "\n";
  const std::string before = text_of(in);
  for (const auto& words : {std::vector<std::string>{"--out", in}, {"--csv", in, "--out", page},
                            {"--baseline", in, "--markdown", in}, {"--out", page, "--csv", page}}) {
    std::vector<std::string> all = {"report", in};
    all.insert(all.end(), words.begin(), words.end());
    const Ran r = attune_says(all);
    EXPECT_EQ(r.code, 2) << words[0];
    EXPECT_TRUE(has(r.err, "would be ")) << r.err;
    EXPECT_EQ(text_of(in), before);
    EXPECT_FALSE(fs::exists(page));
  }
  EXPECT_EQ(attune_says({"report", in, "--out", "/dev/null", "--csv", "/dev/null"}).code, 0);
  std::ofstream(in, std::ios::app) << "{\"attune_rec";
  const Ran torn = attune_says({"report", in});
  EXPECT_EQ(torn.code, 0) << torn.err;
  EXPECT_TRUE(has(torn.out, ":2: skipped an incomplete line")) << torn.out;
}

TEST(Bench, says_that_an_unfinished_line_is_cut_and_how_many_threads_there_may_be) {
  const std::string path = temporary("torn.jsonl");
  std::ofstream(path) << to_json(record("cpu_forward", 512, 1000)) << "\n{\"attune_rec";
  const Ran r = attune_says({"bench", "forward f32 b1 h1 q8 k8 d8 full", "--max-seconds", "0.01", "--out", path});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, join("removed an incomplete line from the end of ", path, "\n"))) << r.err;
  const Ran many = attune_says({"bench", "forward f32 b1 h1 q8 k8 d8 full", "--threads", "4097"});
  EXPECT_EQ(many.code, 2);
  EXPECT_EQ(many.err, join("attune bench: --threads: 4097 is not from 1 to ", this_cpu().units,
                           ", the CPUs that this process may use\n"));
}

}  // namespace
}  // namespace attune
