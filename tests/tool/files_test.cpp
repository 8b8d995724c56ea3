// SPDX-License-Identifier: Apache-2.0
// User data is never lost: a command does not overwrite its own input, and a symlink stays a symlink.
#include "tool/files.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "machine/files.h"
#include "machine/host.h"
#include "tests/tool/records.h"
#include "tests/tool/spawn.h"
#include "tool/record/record.h"
#include "tool/record/store.h"

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
  // Files that do not exist yet, and names without a folder.
  EXPECT_EQ(are_apart({"not_there.html", "./not_there.html"}, {}).message, "./not_there.html would be written twice");
  EXPECT_EQ(are_apart({"not_there.html", fs::absolute("not_there.html")}, {}).message,
            fs::absolute("not_there.html").string() + " would be written twice");
  EXPECT_EQ(are_apart({"not_there.html", "not_there.md"}, {}).message, "");
  const std::string dangling = temporary("dangling");
  fs::create_symlink("absent", dangling);
  EXPECT_EQ(are_apart({temporary("absent"), dangling}, {}).message, dangling + " would be written twice");
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

TEST(Files, a_pipe_that_would_be_replaced_is_not_waited_for) {
  const std::string pipe = temporary("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string text;
  EXPECT_EQ(read_whole(pipe, text).message, "'" + pipe + "' is not a regular file");
  EXPECT_EQ(replace_file(pipe, "new").message, pipe + ": cannot be written: is not a regular file");
}

mode_t mode_of(const std::string& path) {
  struct stat about{};
  return ::stat(path.c_str(), &about) ? 0 : about.st_mode & 07777;
}

TEST(Files, that_are_replaced_keep_their_mode) {
  const std::string path = temporary("secret");
  std::ofstream(path) << "old";
  chmod(path.c_str(), 0600);
  ASSERT_EQ(replace_file(path, "new").message, "");
  ASSERT_EQ(write_file(path, "newer").message, "");
  EXPECT_EQ(text_of(path) + text_of(path + ".before"), "newerold");
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_EQ(mode_of(path + ".before"), 0600u);
}

TEST(Files, that_are_replaced_write_through_nobodys_link) {
  const std::string victim = temporary("victim"), path = temporary("shared.tsv");
  std::ofstream(victim) << "precious";
  std::ofstream(path) << "old";
  fs::create_symlink("victim", path + ".before");
  for (const char* const number : {"", ".0.part"}) fs::create_symlink("victim", join(path, ".", getpid(), number));
  ASSERT_EQ(replace_file(path, "new").message, "");
  EXPECT_EQ(text_of(victim), "precious");
  EXPECT_EQ(text_of(path) + text_of(path + ".before"), "newold");
  EXPECT_FALSE(fs::is_symlink(path + ".before"));
  EXPECT_EQ(replace_file(path, "third", Before::each).message, "");
  EXPECT_EQ(text_of(path + ".before") + text_of(path + ".before.2"), "oldnew") << "the first one stays";
  EXPECT_EQ(replace_file(path, "new", Before::each).message, "");
  EXPECT_EQ(replace_file(path, "fifth", Before::each).message, "");
  EXPECT_EQ(text_of(path + ".before.2") + text_of(path + ".before.3"), "newthird") << "new is kept once";
  EXPECT_FALSE(fs::exists(path + ".before.4"));
}

TEST(Files, a_link_that_another_user_planted_is_not_followed) {
  const std::string folder = temporary("anyones"), victim = temporary("victim2"), link = folder + "/out";
  fs::create_directory(folder);
  chmod(folder.c_str(), 0777);
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, link);
  if (lchown(link.c_str(), 65534, 65534)) GTEST_SKIP() << "requires root";
  const std::string why = "is a link of user 65534 in a folder that everyone may write to; it is not followed";
  EXPECT_EQ(replace_file(link, "new").message, link + ": cannot be written: " + why);
  EXPECT_EQ(write_file(link, "new").message, link + ": cannot be written: " + why);
  EXPECT_EQ(text_of(victim), "precious");
  fs::remove(victim);  // what appends would create it
  EXPECT_EQ(RecordFile().open(link).message, "records: '" + link + "' cannot be written: " + why);
  EXPECT_EQ(Store().open(link, true).message, "store: '" + link + "' cannot be opened: " + why);
  EXPECT_FALSE(fs::exists(victim));
}

TEST(Files, temporary_files_of_killed_processes_are_removed_and_others_stay) {
  const std::string path = temporary("page"), killed = path + ".7.0.part", alive = path + ".8.0.part";
  for (const std::string& file : {killed, alive, path + ".8.part.txt", path + "er.7.0.part"})
    std::ofstream(file) << "";
  const int writer = open(alive.c_str(), O_WRONLY);
  ASSERT_EQ(flock(writer, LOCK_EX), 0);
  ASSERT_EQ(write_file(path, "text").message, "");
  EXPECT_FALSE(fs::exists(killed));
  EXPECT_TRUE(fs::exists(alive) && fs::exists(path + ".8.part.txt") && fs::exists(path + "er.7.0.part"));
  close(writer);
}

TEST(Files, say_why_they_cannot_be_written) {
  EXPECT_EQ(write_file("/dev/full", "text").message, "/dev/full: cannot be written: No space left on device");
  const std::string none = temporary("none/page");
  EXPECT_EQ(write_file(none, "text").message, none + ": cannot be written: No such file or directory");
  EXPECT_EQ(write_file("/proc/version", "text").message.substr(0, 31), "/proc/version: cannot be writte");
}

TEST(Files, a_device_is_not_read) {
  std::string text;
  EXPECT_EQ(read_file("/dev/zero", text).message, "'/dev/zero' is a device, not a file or a pipe");
  EXPECT_EQ(read_file("/dev/null", text).message, "");
  const std::string large = temporary("large");
  std::ofstream(large) << "x";
  fs::resize_file(large, kMostText + 1);
  EXPECT_EQ(read_file(large, text).message, "'" + large + "' has more than 67108864 bytes");
  for (const char* const command : {"report", "verify", "tune"})
    EXPECT_TRUE(has(attune_says({command, "/dev/zero"}).err, "'/dev/zero' is a device, not a file or a pipe"));
  const std::string bench = ATTUNE_BUILD_DIR "/attune bench --lines /dev/stdin";
  const Ran lines = spawn({"sh", "-c", "yes | head -c 70000000 | " + bench});
  EXPECT_EQ(lines.err, "attune bench: --lines: '/dev/stdin' has more than 67108864 bytes\n");
}

TEST(FolderLock, keeps_another_process_out_until_it_ends) {
  FolderLock first, second, elsewhere;
  ASSERT_EQ(first.take(temporary("")).message, "");
  EXPECT_EQ(second.take(temporary(""), 40).message, "is in use by another process");
  EXPECT_EQ(elsewhere.take("/nowhere/at/all").message, "");
}

TEST(Tune, two_at_once_keep_the_rules_of_both) {
  constexpr int kProcesses = 8;
  std::string line = "for n in";
  for (int n = 0; n < kProcesses; ++n) {
    std::ofstream file(temporary(join("dim", n, ".jsonl")));
    for (const int length : {256, 512, 1024})
      for (const char* const backend : {"cpu_forward", "cpu_standard"}) {
        Record r = record(backend, length, backend[4] == 'f' ? 1000 : 3000);
        r.problem.replace(r.problem.find(" d64"), 4, join(" d", 8 * (n + 1)));
        file << to_json(r) << "\n";
      }
    line += join(" ", n);
  }
  const std::string out = temporary("both.tsv");
  line += join("; do " ATTUNE_BUILD_DIR "/attune tune ", temporary("dim"), "$n.jsonl --out ", out, " & done; wait");
  for (int round = 0; round < 4; ++round) {
    fs::remove(out);
    spawn({"sh", "-c", line});
    for (int n = 0; n < kProcesses; ++n)
      EXPECT_TRUE(has(text_of(out), join("\td", 8 * (n + 1), "\tcausal"))) << "in round " << round;
  }
}

TEST(Report, a_page_that_cannot_be_written_whole_leaves_the_last_one) {
  const std::string in = temporary("records2.jsonl"), page = temporary("last.html");
  std::ofstream(in) << to_json(record("cpu_forward", 512, 1000)) << "\n";
  std::ofstream(page) << "the last page";
  const Ran full = spawn({"sh", "-c", "ulimit -f 8; trap '' XFSZ; exec " ATTUNE_BUILD_DIR "/attune report \"$1\" --out "
                          "\"$2\"", "sh", in, page});
  EXPECT_EQ(full.code, 3);
  EXPECT_EQ(full.err, "attune report: " + page + ": cannot be written: File too large\n");
  EXPECT_EQ(text_of(page), "the last page");
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
