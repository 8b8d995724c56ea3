// SPDX-License-Identifier: Apache-2.0
// A sweep killed at any moment loses at most the row in progress, and --resume completes it to the same table.
#include "tool/bench/sweep.h"

#include <gtest/gtest.h>

#include <csignal>
#include <random>

#include "machine/host.h"
#include "tests/asked.h"
#include "tests/tool/spawn.h"
#include "tool/record/provenance.h"

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
  for (const Record& r : records) all.push_back(join(r.problem, " | ", r.subject, " | ", r.status.text()));
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
    if (had >= 2 * (kRows - 1)) std::filesystem::remove(path), had = 0;  // nearly done: start again
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
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);  // or it finished first
    // All rows except the last are complete, and no earlier row is lost.
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

// A sweep of one row for which these records exist.
Sweep sweep_with(std::vector<Record> records, std::vector<std::string> backends) {
  Sweep s = small_sweep();
  s.rows.resize(1), s.benches[0].backends = std::move(backends);
  for (Record& r : records) r.provenance.commit = "abc";
  s.keep(std::move(records));
  return s;
}
std::vector<Record> measured(std::vector<std::string> backends) {
  std::vector<Record> out;
  EXPECT_EQ(sweep_with({}, std::move(backends)).run(out).message, "");
  return out;
}

TEST(Sweep, all_is_done_where_every_backend_that_takes_the_row_is_there) {
  const std::vector<Record> decode = measured({"reference", "cpu_standard"}), all = measured({"all"});
  EXPECT_EQ(sweep_with(decode, {"all"}).done(), 0u);
  EXPECT_EQ(sweep_with(all, {"all"}).done(), 1u);
  EXPECT_EQ(sweep_with(all, {"all", "reference"}).done(), 0u);
}

TEST(Sweep, without_a_name_the_row_is_done_where_the_planners_choice_is_there) {
  EXPECT_EQ(sweep_with(measured({"reference"}), {}).done(), 0u);
  EXPECT_EQ(sweep_with(measured({"reference", "cpu_standard"}), {}).done(), 0u);
  EXPECT_EQ(sweep_with(measured({"cpu_forward"}), {}).done(), 1u);
  EXPECT_EQ(sweep_with(measured({}), {}).done(), 1u);
}

TEST(Sweep, a_complete_row_that_does_not_answer_the_request_is_measured_again) {
  const std::vector<std::string> both = {"reference", "cpu_standard"};
  std::vector<Record> good = measured(both);
  ASSERT_EQ(good.size(), 2u);
  good[1].baseline = good[0].subject;  // as compare() writes it
  const auto again = [&](const std::vector<Record>& records, const auto& change) {
    Sweep s = sweep_with(records, both);
    change(s.benches[0]);
    EXPECT_EQ(s.done(), s.not_answered().empty() ? 1u : 0u);
    return s.not_answered();
  };
  EXPECT_EQ(again(good, [](Bench&) {}), "");
  std::vector<Record> unchecked = good;
  unchecked[0].parity = {.verdict = CheckVerdict::unchecked, .message = kNotAskedFor};
  EXPECT_EQ(again(unchecked, [](Bench&) {}), "1 row is measured again: their results were not checked");
  EXPECT_EQ(again(unchecked, [](Bench& b) { b.check = false; }), "");
  EXPECT_EQ(again(good, [](Bench& b) { b.check = false; }), "") << "a check is more than was requested";
  EXPECT_EQ(again(good, [](Bench& b) { b.baseline = "cpu_standard"; }),
            "1 row is measured again: their baseline was another");
  EXPECT_EQ(again(good, [](Bench& b) { b.baseline = "reference"; }), "");
  EXPECT_EQ(again(good, [](Bench& b) { b.timing.precision = 0.001; }),
            "1 row is measured again: their --precision was coarser");
  EXPECT_EQ(again(good, [](Bench& b) { b.timing.precision = 0.1; }), "") << "more precise than was requested";
  EXPECT_EQ(again(good, [](Bench& b) { b.timing.max_samples = 7; }),
            "1 row is measured again: their --samples were others");
  for (const bool calls : {false, true})
    EXPECT_EQ(again(good, [&](Bench& b) {
                b.timing.max_seconds = 100, b.timing.warm_up_all = true;
                calls ? void(b.timing.warm_up_calls = 1000000) : void(b.timing.warm_up_seconds = 20);
              }), "1 row is measured again: their warm-up was shorter");
}

TEST(Sweep, what_failed_is_done_only_for_those_who_asked_for_it) {
  Record r = blank_record(small_sweep().rows[0], small_sweep().benches[0]);
  r.subject = "reference", r.status = RecordStatus::failed, r.row_records = 1;
  EXPECT_EQ(sweep_with({r}, {"cpu_standard"}).done(), 0u);
  EXPECT_EQ(sweep_with({r}, {}).done(), 0u);
  EXPECT_EQ(sweep_with({r}, {"reference"}).done(), 1u);
  r.subject = "attune", r.status = RecordStatus::oom;  // for the whole row
  EXPECT_EQ(sweep_with({r}, {"cpu_standard"}).done(), 1u);
  r.status = RecordStatus::unsupported;  // a refusal by the planner, which does not consider check-only backends
  EXPECT_EQ(sweep_with({r}, {"reference"}).done(), 0u);
}

TEST(Sweep, a_row_that_takes_too_long_is_left_out_and_says_so) {
  const std::string path = temporary("too_long.jsonl");
  RecordFile file;
  ASSERT_EQ(file.open(path).message, "");
  Sweep sweep = small_sweep();
  sweep.rows.resize(3), sweep.rows[1].most_call_s = 1e-15, sweep.file = &file;
  const double left = sweep.seconds_left();
  std::vector<Record> out;
  ASSERT_EQ(sweep.run(out).message, "");
  ASSERT_EQ(out.size(), 5u);  // two backends of the other rows
  EXPECT_EQ(out[2].subject, "attune");
  EXPECT_EQ(out[2].status, RecordStatus::unsupported);
  EXPECT_EQ(out[2].left_out, LeftOut::not_tried);
  EXPECT_TRUE(out[2].message.starts_with("not tried: one call is estimated at ")) << out[2].message;
  EXPECT_EQ(out[4].status, RecordStatus::ok);
  Sweep again = small_sweep();
  again.rows.resize(3);
  EXPECT_GT(again.seconds_left(), left);
  again.keep(out);
  EXPECT_EQ(again.done(), 3u) << "a resumed run does not say it twice";
}

TEST(Sweep, nothing_of_a_filtered_file_is_cut) {
  for (const bool ended : {true, false}) {  // the last line may be unterminated
    const std::string path = temporary("filtered.jsonl");
    std::string text;
    Record r;
    r.run = "1", r.row_records = 2, r.subject = "cpu_forward";  // and cpu_standard, which is not in the file
    for (int n = 0; n < 4; ++n) r.problem = line_of(n), text += to_json(r) + "\n";
    std::ofstream(path) << text.substr(0, text.size() - !ended);
    RecordFile file;
    ASSERT_EQ(file.open(path).message, "");
    std::vector<Record> before;
    size_t cut = 7;
    ASSERT_EQ(file.resume(before, &cut).message, "");
    EXPECT_TRUE(before.empty());
    EXPECT_EQ(cut, 0u);
    EXPECT_EQ(text_of(path), text);
  }
}

TEST(Sweep, a_whole_row_that_lacks_only_the_end_of_its_last_line_is_there) {
  const std::string path = temporary("unended.jsonl");
  std::vector<Record> out;
  ASSERT_EQ(resumed(path, out).message, "");
  const std::string text = text_of(path);
  std::ofstream(path) << text.substr(0, text.size() - 1);
  out.clear();
  ASSERT_EQ(resumed(path, out).message, "");
  EXPECT_EQ(text_of(path), text);
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
    out.back().status = out[4].status = RecordStatus::interrupted;
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
  for (const char* const notes : {"my notes", "my notes\n", "my notes\n\n"}) {
    std::ofstream(path) << notes;
    EXPECT_EQ(RecordFile().open(path).message,
              join("records: '", path, "' does not end with a record; the file is left unchanged"));
    EXPECT_EQ(text_of(path), notes);
  }
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
  EXPECT_TRUE(has(r.err, "1 of 2 rows is already in ")) << r.err;
  EXPECT_EQ(text_of(path).substr(0, second), whole.substr(0, second));
  std::vector<Record> records;
  ASSERT_EQ(read_records(path, records).message, "");
  EXPECT_EQ(records.size(), 2u);
  const size_t dirty = whole.find("\"dirty\":");
  ASSERT_NE(dirty, whole.npos);
  std::string changed = text_of(path);
  changed.replace(dirty, changed.find(',', dirty) - dirty, "\"dirty\":true");
  std::ofstream(path) << changed;
  EXPECT_TRUE(has(attune_says(words).err, "warning: uncommitted changes")) << changed.substr(0, 2000);
  const Ran none = attune_says({"bench", "--resume"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, "attune bench: --resume: no file to continue; give one with --out\n");
  const Ran lengths = attune_says({"bench", "forward f32 b2 h1 q8 k8 d16 causal ragged", "--lengths", "3,8", "--out",
                                   path, "--resume"});
  EXPECT_EQ(lengths.code, 2);
  EXPECT_EQ(lengths.err,
            "attune bench: --resume: not accepted with --lengths, because records do not hold lengths\n");
}

TEST(Sweep, the_command_keeps_what_is_there_at_ctrl_c) {
  const std::string path = temporary("ctrl_c.jsonl");
  const std::string quick = "forward f32 b1 h1 q16 k16 d16 causal", slow = "forward f32 b2 h8 q1024 k1024 d64 full";
  const auto seen = [&] {
    std::vector<Record> records;
    if (std::filesystem::exists(path)) (void)read_records(path, records);
    return records;
  };
  // The first row ends by its number of samples; the second would run for minutes.
  Background bench({"bench", quick, slow, "--precision", "1e-9", "--max-seconds", "600", "--out", path});
  ASSERT_TRUE(comes([&] { return seen().size() == 1; })) << bench.says();
  usleep(500'000);
  EXPECT_EQ(bench.ends(SIGINT), 128 + SIGINT) << bench.says();
  EXPECT_TRUE(has(bench.says(), "attune bench: interrupted after ")) << bench.says();
  EXPECT_TRUE(has(bench.says(), quick)) << "the table: " << bench.says();
  ASSERT_GE(seen().size(), 1u);
  EXPECT_EQ(seen()[0].status, RecordStatus::ok);
  for (size_t n = 1; n < seen().size(); ++n) EXPECT_EQ(seen()[n].status, RecordStatus::interrupted);
  const Ran honest = attune_says({"verify", path});
  EXPECT_EQ(honest.code, 0) << honest.out;
  EXPECT_TRUE(has(honest.out, "warning: unfinished-run: ")) << honest.out;
  const Ran r = attune_says({"bench", quick, slow, "--max-seconds", "0.05", "--out", path, "--resume"});
  EXPECT_EQ(r.code, 0) << r.err;
  const Ran resumed = attune_says({"verify", path});
  EXPECT_EQ(resumed.code, 0) << resumed.out;
  EXPECT_FALSE(has(resumed.out, "unfinished-run")) << resumed.out;
  EXPECT_TRUE(has(r.err, "1 of 2 rows is already in ")) << r.err;
  EXPECT_EQ(table_of(seen()), (std::vector<std::string>{quick + " | cpu_forward | ok", slow + " | cpu_forward | ok"}));
}

TEST(Sweep, the_command_keeps_the_row_in_flight_at_every_signal_that_ends_it) {
  const std::string slow = "forward f32 b2 h8 q1024 k1024 d64 full";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string path = temporary(join("signal", signal, ".jsonl"));
    Background bench({"bench", slow, "--precision", "1e-9", "--max-seconds", "600", "--timing", "warm,cold", "--out",
                      path});
    usleep(1'500'000);
    // The signal itself ends the process at last: a shell ends its loop then, and not at an exit code.
    int status = 0;
    kill(bench.id(), signal), waitpid(bench.id(), &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << signal << ": " << status << bench.says();
    bench.forget();
    EXPECT_TRUE(has(bench.says(), "attune bench: interrupted after ")) << bench.says();
    EXPECT_FALSE(has(bench.says(), "interrupted:")) << bench.says();
    std::vector<Record> records;
    ASSERT_EQ(read_records(path, records).message, "");
    for (const Record& r : records) EXPECT_EQ(r.status, RecordStatus::interrupted);
  }
}

TEST(Sweep, a_resumed_run_names_the_spread_of_its_earlier_rows) {
  const std::string path = temporary("spread.jsonl"), first = "forward f32 b1 h1 q16 k16 d16 causal";
  const std::vector<std::string> words = {"bench", first, "--max-seconds", "0.05", "--out", path};
  ASSERT_EQ(attune_says(words).code, 0);
  std::vector<Record> records;
  ASSERT_EQ(read_records(path, records).message, "");
  ASSERT_EQ(records.size(), 1u);
  records[0].aa_spread = 4.05;
  std::ofstream(path) << to_json(records[0]) << "\n";
  std::vector<std::string> more = words;
  more.insert(more.begin() + 2, "forward f32 b1 h1 q32 k32 d16 causal"), more.push_back("--resume");
  const Ran r = attune_says(more);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, "1 of 2 rows is already in ")) << r.err;
  EXPECT_TRUE(has(r.out, ", A/A spread of earlier rows up to 405.0 %\n")) << r.out;
  EXPECT_TRUE(has(r.err, "warning: A/A spread 405.0 % (warm, ")) << r.err;
}

TEST(Sweep, lengths_are_those_of_the_rows_with_ragged_keys) {
  const std::string ragged = "forward f32 b2 h1 q8 k8 d16 causal ragged", dense = "forward f32 b3 h1 q4 k4 d16 causal";
  const auto says = [](std::vector<std::string> words) {
    words.insert(words.begin(), "bench");
    words.insert(words.end(), {"--dry-run", "--lengths", "3,8"});
    return attune_says(words);
  };
  const Ran both = says({ragged, dense});
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_TRUE(has(both.out, ragged) && has(both.out, dense)) << both.out;
  EXPECT_EQ(says({dense}).err, "attune bench: --lengths: no problem has ragged keys: " + dense + "\n");
  const std::string three = "forward f32 b3 h1 q8 k8 d16 causal ragged";
  EXPECT_EQ(says({dense, three}).err, "attune bench: --lengths: 2 lengths given for 3 sequences of: " + three + "\n");
}

TEST(Sweep, the_command_says_what_it_cuts_off) {
  const std::string path = temporary("cut.jsonl");
  const std::vector<std::string> words = {"bench", "--len", "16,24", "--dim", "16", "--heads", "1", "--max-seconds",
                                          "0.02", "--backend", "cpu_forward,cpu_standard", "--out", path, "--resume"};
  ASSERT_EQ(attune_says(words).code, 0);
  const std::string whole = text_of(path);
  // Three records, and the beginning of a fourth.
  std::ofstream(path) << whole.substr(0, whole.rfind('\n', whole.size() - 2) + 40);
  const Ran r = attune_says(words);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, join("removed 1 record of an unfinished row from the end of ", path, "\n"))) << r.err;
  std::vector<Record> records;
  ASSERT_EQ(read_records(path, records).message, "");
  EXPECT_EQ(records.size(), 4u);
}

}  // namespace
}  // namespace attune
