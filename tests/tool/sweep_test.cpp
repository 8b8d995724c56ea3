// A sweep that is killed at any moment loses at most the row in flight, and --resume completes it to the same table.
#include "tool/measure/sweep.h"

#include <gtest/gtest.h>

#include <csignal>
#include <random>

#include "machine/host.h"
#include "tests/asked.h"
#include "tests/tool/spawn.h"
#include "tool/measure/provenance.h"

namespace attune {
namespace {

constexpr int kRows = 24;

std::string line_of(int n) { return join("forward f32 b1 h1 q", 8 + n, " k", 8 + n, " d16 causal"); }

Sweep small_sweep() {
  Bench b;
  b.device = this_cpu();
  b.device.units = 1;
  b.backends = {"reference", "cpu_standard"};
  b.timing.max_seconds = 0.004, b.timing.warm_up_seconds = 0.0005, b.timing.min_samples = 3;
  b.ceilings = Ceilings{.threads = 1, .f32 = {"none", 1e9}, .bf16 = {}, .copy_gbs = 1e9};
  b.floor_ns = 1, b.aa_spread = 0.05;
  b.run = new_run();
  b.provenance.commit = "abc", b.provenance.time = "2026-01-31T12:00:00Z";
  Sweep s;
  for (int n = 0; n < kRows; ++n) s.rows.push_back({problem(line_of(n)), ""});
  s.benches.push_back(std::move(b));
  return s;
}

// What `bench --resume` does, in this process.
Status resumed(const std::string& path, std::vector<Record>& out) {
  RecordFile file;
  if (Status s = file.open(path); !s.ok()) return s;
  Sweep sweep = small_sweep();
  std::vector<Record> before;
  if (Status s = file.resume(before); !s.ok()) return s;
  sweep.keep(std::move(before));
  sweep.file = &file;
  return sweep.run(out);
}

std::vector<std::string> table_of(const std::vector<Record>& records) {
  std::vector<std::string> all;
  for (const Record& r : records) all.push_back(join(r.problem, " | ", r.subject, " | ", r.status));
  return all;
}
std::vector<std::string> whole_table() {
  std::vector<std::string> all;
  for (int n = 0; n < kRows; ++n)
    for (const char* subject : {"reference", "cpu_standard"}) all.push_back(join(line_of(n), " | ", subject, " | ok"));
  return all;
}

TEST(Sweep, killed_50_times_at_random_moments_loses_at_most_the_row_in_flight) {
  const std::string path = temporary("killed.jsonl");
  std::mt19937 random(11);
  size_t had = 0;
  int kills = 0;
  while (kills < 50) {
    if (had >= 2 * (kRows - 1)) std::filesystem::remove(path), had = 0;  // it was nearly done: once more from the start
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::vector<Record> out;
      _exit(resumed(path, out).ok() ? 0 : 1);
    }
    usleep(useconds_t(1000 + random() % 25000));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    kills += WIFSIGNALED(status);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);  // or it was quicker
    // All rows but the last are whole, and none that was there is gone.
    std::vector<Record> now;
    if (std::filesystem::exists(path)) {
      ASSERT_EQ(read_records(path, now).message, "");
    }
    const size_t whole = now.size() / 2 * 2;
    ASSERT_GE(whole, had) << "after kill " << kills;
    for (size_t n = 0; n < whole; n += 2) {
      ASSERT_EQ(now[n].problem, line_of(int(n / 2)));
      ASSERT_EQ(now[n + 1].problem, now[n].problem);
      ASSERT_EQ(now[n + 1].run, now[n].run);
    }
    had = whole;
  }
  std::vector<Record> out, file;
  ASSERT_EQ(resumed(path, out).message, "");
  EXPECT_EQ(table_of(out), whole_table());
  ASSERT_EQ(read_records(path, file).message, "");
  EXPECT_EQ(table_of(file), whole_table());
}

TEST(Sweep, resumes_without_measuring_again_what_is_there) {
  const std::string path = temporary("again.jsonl");
  std::vector<Record> first, second;
  ASSERT_EQ(resumed(path, first).message, "");
  const std::string text = text_of(path);
  ASSERT_EQ(resumed(path, second).message, "");
  EXPECT_EQ(text_of(path), text);
  EXPECT_EQ(table_of(second), table_of(first));
}

TEST(Sweep, a_row_without_a_subject_that_is_asked_for_now_is_measured_again) {
  const std::string path = temporary("fewer.jsonl");
  std::vector<Record> out;
  {
    RecordFile file;
    ASSERT_EQ(file.open(path).message, "");
    Sweep sweep = small_sweep();
    sweep.rows.resize(1), sweep.benches[0].backends = {"reference"}, sweep.file = &file;
    ASSERT_EQ(sweep.run(out).message, "");
    ASSERT_EQ(out.size(), 1u);
  }
  Sweep sweep = small_sweep();
  sweep.rows.resize(1);
  sweep.keep(out);
  EXPECT_EQ(sweep.done(), 0u);
  sweep.benches[0].backends = {"reference"};
  EXPECT_EQ(sweep.done(), 1u);
  sweep.benches[0].provenance.commit = "other";
  EXPECT_EQ(sweep.done(), 0u);
}

TEST(Sweep, an_interrupted_row_is_kept_and_measured_again) {
  const std::string path = temporary("interrupted.jsonl");
  std::atomic<bool> stop = false;
  std::vector<Record> out;
  {
    RecordFile file;
    ASSERT_EQ(file.open(path).message, "");
    Sweep sweep = small_sweep();
    sweep.benches[0].timing.stop = &stop, sweep.file = &file;
    size_t rows = 0;
    sweep.each = [&](const Record&) { stop = ++rows == 6; };
    ASSERT_EQ(sweep.run(out).message, "");
    EXPECT_EQ(out.size(), 6u);
    out.back().status = out[4].status = "interrupted";
    ASSERT_EQ(file.write(std::span(out).last(2)).message, "");
  }
  std::vector<Record> seen, all;
  ASSERT_EQ(read_records(path, seen).message, "");
  EXPECT_EQ(seen.size(), 8u);
  ASSERT_EQ(resumed(path, all).message, "");
  EXPECT_EQ(table_of(all), whole_table());
  seen.clear();
  ASSERT_EQ(read_records(path, seen).message, "");
  EXPECT_EQ(table_of(seen), whole_table());
}

TEST(Sweep, a_file_that_is_something_else_is_left_alone) {
  const std::string path = temporary("notes.txt");
  std::ofstream(path) << "my notes";
  RecordFile file;
  EXPECT_EQ(file.open(path).message,
            join("records: '", path, "' ends in something that is not a record, and is left alone"));
  EXPECT_EQ(text_of(path), "my notes");
}

TEST(Sweep, two_runs_do_not_write_one_file) {
  const std::string path = temporary("both.jsonl");
  RecordFile one, two;
  ASSERT_EQ(one.open(path).message, "");
  EXPECT_EQ(two.open(path).message, join("records: '", path, "' is being written by another run"));
}

TEST(Sweep, the_command_goes_on_where_it_was_killed) {
  const std::string path = temporary("command.jsonl");
  const std::vector<std::string> words = {"bench", "--len", "16,24", "--dim", "16", "--heads", "1", "--max-seconds",
                                          "0.02", "--out", path, "--resume"};
  ASSERT_EQ(attune_says(words).code, 0);
  const std::string whole = text_of(path);
  const size_t second = whole.find('\n') + 1;
  std::ofstream(path) << whole.substr(0, second + 100);  // killed in the second row
  const Ran r = attune_says(words);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, "1 of 2 rows are in ")) << r.err;
  EXPECT_EQ(text_of(path).substr(0, second), whole.substr(0, second));
  std::vector<Record> records;
  ASSERT_EQ(read_records(path, records).message, "");
  EXPECT_EQ(records.size(), 2u);
  const Ran none = attune_says({"bench", "--resume"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, "attune bench: --resume needs the file to go on with: --out\n");
}

}  // namespace
}  // namespace attune
