// SPDX-License-Identifier: Apache-2.0
// Requirements of the user's own: what is met, missed, unclear or shown by nothing, and what a file of them may hold.
#include "tool/compare/bars.h"

#include <gtest/gtest.h>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

std::vector<Record> run() {  // cpu_forward is 1.5, 2 and 4 times as fast as the peer
  std::vector<Record> all;
  for (const auto& [length, ns] : {std::pair{256, 3e3}, {512, 4e3}, {1024, 8e3}}) {
    all.push_back(record("torch:sdpa", length, ns)), all.back().peer = true;
    all.push_back(record("cpu_forward", length, 2e3));
    for (Record* r : {&all[all.size() - 1], &all[all.size() - 2]}) r->gflops = 500, r->parity.error = 0.25;
  }
  return all;
}
BarResult judged(const std::string& text, const std::vector<Record>& records = run()) {
  static std::vector<Bar> bars;  // results point into it
  bars.clear();
  const Status s = read_bars("[[bar]]\nname = \"x\"\n" + text, "bars.toml", bars);
  EXPECT_EQ(s.message, "");
  return s.ok() ? judge(bars, records).at(0) : BarResult{};
}

TEST(Bars, a_ratio_must_be_reached_in_every_row) {
  const BarResult met = judged("subject = \"cpu_forward\"\nover = \"torch:sdpa\"\nratio = 1.4\nmean = 2.2\n");
  EXPECT_EQ(met.status, BarStatus::met) << met.sentence;
  EXPECT_EQ(met.sentence, "3 rows, least 1.50x, mean 2.29x");
  const BarResult missed = judged("subject = \"cpu_forward\"\nover = \"peers\"\nratio = 1.8\n");
  EXPECT_EQ(missed.status, BarStatus::missed);
  ASSERT_EQ(missed.evidence.size(), 1u);
  EXPECT_TRUE(has(missed.evidence[0], "q256 k256 d64 causal: cpu_forward 1.50x [")) << missed.evidence[0];
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.8\nshare = 0.6\n").status, BarStatus::met) << "two of three";
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.8\nshare = 0.7\n").status, BarStatus::missed);
  EXPECT_EQ(judged("over = \"peers\"\nmean = 2.4\n").status, BarStatus::missed);
}

TEST(Bars, a_ratio_whose_interval_reaches_the_bar_is_unclear) {
  std::vector<Record> noisy = run();
  for (Record& r : noisy)
    for (size_t n = 0; n < r.samples_ns.size(); ++n) r.samples_ns[n] *= n % 2 ? 0.8 : 1.2;
  for (Record& r : noisy) r.median_ns = median(r.samples_ns);
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.55\n", noisy).status, BarStatus::unclear);
}

TEST(Bars, a_row_measured_under_load_proves_nothing_over_a_peer) {
  std::vector<Record> loaded = run();
  for (size_t n = 0; n < 2; ++n) loaded[n].load = {.seconds = 2, .cpus = 2, .waited = 0.4, .used = 0.5, .others = 0.5};
  const BarResult r = judged("over = \"peers\"\nratio = 1.4\n", loaded);
  EXPECT_EQ(r.status, BarStatus::unclear);
  ASSERT_EQ(r.evidence.size(), 1u);
  EXPECT_TRUE(has(r.evidence[0], "cpu_forward against torch:sdpa under load: other processes took 50 %"))
      << r.evidence[0];
  EXPECT_EQ(judged("over = \"peers\"\nmean = 2.2\n", loaded).status, BarStatus::unclear);
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.4\nshare = 0.6\n", loaded).status, BarStatus::met) << "two of three";
}

TEST(Bars, rows_are_selected_and_a_bar_without_rows_is_not_met) {
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.8\nrows = {len = [512, 1024]}\n").status, BarStatus::met);
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.8\nrows = {len_least = 500, mask = \"causal\"}\n").rows, 2);
  for (const char* rows : {"pass = \"backward\"", "dtype = \"bf16\"", "mask = \"full\"", "dim = 128", "batch = 7",
                           "device = \"cuda:0\"", "heads = 1", "len_most = 100", "timing = \"cold\"", "len_q = 1",
                           "variant = \"nsa\""}) {
    const BarResult r = judged(join("over = \"peers\"\nratio = 1.0\nrows = {", rows, "}\n"));
    EXPECT_EQ(r.status, BarStatus::empty) << rows;
  }
  const BarResult few = judged("over = \"peers\"\nratio = 1.0\ncount = 4\n");
  EXPECT_EQ(few.status, BarStatus::empty);
  std::vector<Record> again = run(), all = run();
  for (Record& r : again) r.run += "1";
  all.insert(all.end(), again.begin(), again.end());
  const BarResult twice = judged("over = \"peers\"\nratio = 1.0\ncount = 4\n", all);
  EXPECT_EQ(twice.status, BarStatus::empty) << "six measurements of three rows";
  EXPECT_TRUE(has(twice.sentence, "6 rows, least 1.50x, mean 2.29x, 3 different of 4 that must")) << twice.sentence;
  EXPECT_EQ(judged("over = \"peers\"\nratio = 9\nmicroseconds = 0.1\ncount = 4\n").status, BarStatus::empty)
      << "three rows that miss two demands";
  EXPECT_TRUE(has(few.sentence, "3 rows, least 1.50x, mean 2.29x of 4 that must be there")) << few.sentence;
}

TEST(Bars, a_row_that_was_not_measured_is_a_miss_and_not_left_out) {
  std::vector<Record> all = run();
  all[1].status = RecordStatus::oom, all[1].message = "no room";
  const BarResult r = judged("subject = \"cpu_forward\"\nover = \"peers\"\nratio = 1.0\n", all);
  EXPECT_EQ(r.status, BarStatus::missed);
  EXPECT_TRUE(has(r.evidence.at(0), "cpu_forward was not measured: no room"));
  all = run();
  all[0].parity.verdict = CheckVerdict::fail;
  const BarResult wrong = judged("subject = \"cpu_forward\"\nover = \"peers\"\nratio = 1.0\n", all);
  EXPECT_EQ(wrong.status, BarStatus::missed) << "a wrong peer is nothing to compare with";
  EXPECT_TRUE(has(wrong.evidence.at(0), "nothing to compare cpu_forward with: torch:sdpa: ")) << wrong.evidence[0];
}

TEST(Bars, samples_that_are_no_times_or_not_those_of_the_median_prove_nothing) {
  for (const double sample : {-5., 0.}) {
    std::vector<Record> all = run();
    for (Record& r : all)
      if (r.peer) r.samples_ns.assign(30, sample);
    const BarResult r = judged("subject = \"cpu_forward\"\nover = \"torch:sdpa\"\nratio = 1.0\nmean = 9\n", all);
    EXPECT_EQ(r.status, BarStatus::missed) << r.sentence;
    EXPECT_EQ(r.sentence, "3 rows") << "no mean of nothing";
    EXPECT_TRUE(has(r.evidence.at(0), join("torch:sdpa: a sample of ", sample, " ns is not a time"))) << r.evidence[0];
  }
  std::vector<Record> all = run();
  all[1].median_ns = 1;
  const BarResult r = judged("subject = \"cpu_forward\"\nmicroseconds = 5\n", all);
  EXPECT_EQ(r.status, BarStatus::missed) << r.sentence;
  EXPECT_TRUE(has(r.evidence.at(0), "its median is recorded as 1 ns, and that of its samples is 2000 ns"));
}

TEST(Bars, a_ratio_of_few_samples_is_neither_met_nor_missed) {
  std::vector<Record> all = run();
  for (Record& r : all) r.samples_ns.resize(5), r.median_ns = median(r.samples_ns);
  for (const char* const bar : {"ratio = 1.4\n", "ratio = 9\n", "mean = 1.4\n"}) {
    const BarResult r = judged(join("over = \"peers\"\n", bar), all);
    EXPECT_EQ(r.status, BarStatus::unclear) << r.sentence;
    EXPECT_TRUE(has(r.evidence.at(0), "cpu_forward against torch:sdpa: 5 samples: a verdict needs 6")) << r.evidence[0];
  }
}

TEST(Bars, absolute_limits) {
  EXPECT_EQ(judged("tflops = 0.5\nmicroseconds = 2.01\nerror = 0.25\n").status, BarStatus::met);
  EXPECT_EQ(judged("tflops = 0.6\n").status, BarStatus::missed);
  EXPECT_EQ(judged("microseconds = 1.9\n").status, BarStatus::missed);
  const BarResult r = judged("error = 0.2\n");
  EXPECT_EQ(r.status, BarStatus::missed);
  EXPECT_TRUE(has(r.evidence.at(0), "cpu_forward 0.250 tolerances, at most 0.200 tolerances")) << r.evidence[0];
}

TEST(Bars, a_rate_is_that_of_another_row_of_the_subject) {
  std::vector<Record> all = run();
  for (Record& r : all)
    if (r.peer || has(r.problem, "q512")) r.gflops = 100;
  // q256 and q1024 at 500, against q512 at 100.
  const std::string of = "of = {q256 = \"q512\", k256 = \"k512\"}\n";
  EXPECT_EQ(judged("subject = \"cpu_forward\"\nrate = 1.1\n" + of).status, BarStatus::missed) << "500 and 500";
  const BarResult fast = judged("subject = \"cpu_forward\"\nrate = 4.9\n" + of, all);
  EXPECT_EQ(fast.status, BarStatus::met) << fast.sentence;
  EXPECT_EQ(fast.rows, 1) << "rows whose line stays as it is are only compared with";
  const BarResult slow = judged("subject = \"cpu_forward\"\nrate = 5.1\n" + of, all);
  EXPECT_EQ(slow.status, BarStatus::missed);
  EXPECT_TRUE(has(slow.evidence.at(0), "cpu_forward 5.00 of the rate of forward f32 b1 h8 q512 k512 d64 causal, at "))
      << slow.evidence[0];
  const BarResult none = judged("subject = \"cpu_forward\"\nrate = 1\nof = {\"d6*\" = \"d65\"}\n", all);
  EXPECT_EQ(none.status, BarStatus::missed);
  EXPECT_TRUE(has(none.evidence.at(0), "it was not measured at forward f32 b1 h8 q256 k256 d65 causal"));
  EXPECT_EQ(other_line({{"window*", "causal"}, {"ragged", ""}}, "forward f32 b1 window3,0 ragged"),
            "forward f32 b1 causal");
}

TEST(Bars, lists_are_held_against_the_time_without_them) {
  std::vector<Record> all = run();
  all.push_back(all[1]);
  Record& r = all.back();
  r.problem += " blocks64x64x4", r.pattern = "random density=0.5", r.shown_blocks = 8, r.active_blocks = 4;
  r.density = 0.5;  // the whole takes 2 us
  for (double& s : r.samples_ns) s *= 0.55;
  r.median_ns = median(r.samples_ns);
  EXPECT_EQ(judged("subject = \"cpu_forward\"\ndensity = 1.12\n", all).status, BarStatus::met);
  const BarResult slow = judged("subject = \"cpu_forward\"\ndensity = 1.05\n", all);
  EXPECT_EQ(slow.status, BarStatus::missed);
  EXPECT_EQ(slow.rows, 1);
  EXPECT_TRUE(has(slow.evidence.at(0), "cpu_forward 1.10 of density x the time of forward f32 b1 h8 q256"))
      << slow.evidence[0];
}

// The row of the subject that others are compared with is 1.00x by itself, and shows nothing.
TEST(Bars, a_subject_is_not_compared_with_itself) {
  std::vector<Record> all = run();
  for (Record& r : all)
    if (r.peer) r.peer = false, r.subject = "cpu_standard";
  const BarResult r = judged("over = \"cpu_standard\"\nratio = 1.4\nmean = 2.2\n", all);
  EXPECT_EQ(r.status, BarStatus::met) << r.evidence.at(0);
  EXPECT_EQ(r.sentence, "3 rows, least 1.50x, mean 2.29x");
}

TEST(Bars, a_name_stays_in_its_line) {
  std::vector<Bar> bars;
  ASSERT_EQ(read_bars("[[bar]]\nname = \"a\\nMET      b: 3 rows\"\ntflops = 1\n", "bars.toml", bars).message, "");
  EXPECT_EQ(bars.at(0).name, "a\\u000aMET      b: 3 rows");
}

TEST(Bars, a_floor_is_taken_off_both_times) {
  std::vector<Record> all = run();  // 2 us against 3, 4 and 8
  for (Record& r : all) r.floor_ns = 1e3;
  EXPECT_EQ(judged("over = \"peers\"\nratio = 1.9\n", all).status, BarStatus::missed);
  const BarResult r = judged("over = \"peers\"\nratio = 1.9\nless_floor = true\n", all);
  EXPECT_EQ(r.status, BarStatus::met);
  EXPECT_EQ(r.sentence, "3 rows, least 2.00x, mean 3.48x");
}

// Times of 10 us to 1 % and a floor of 9 us leave 1 us to 10 %.
TEST(Bars, what_a_floor_leaves_is_as_uncertain_as_the_whole) {
  std::vector<Record> all = {record("torch:sdpa", 256, 10.9e3), record("cpu_forward", 256, 10e3)};
  all[0].peer = true;
  for (Record& r : all) {
    for (size_t n = 0; n < r.samples_ns.size(); ++n) r.samples_ns[n] += n % 2 ? 100 : -100;
    r.median_ns = median(r.samples_ns), r.floor_ns = 9e3;
  }
  const BarResult near = judged("over = \"peers\"\nratio = 2.0\nless_floor = true\n", all);
  EXPECT_EQ(near.status, BarStatus::unclear) << near.evidence.at(0);
  EXPECT_EQ(judged("over = \"peers\"\nratio = 3.0\nless_floor = true\n", all).status, BarStatus::missed);
  for (Record& r : all) r.floor_ns = 20e3;
  EXPECT_EQ(judged("over = \"peers\"\nratio = 2.0\nless_floor = true\n", all).status, BarStatus::missed);
}

TEST(Bars, unfused_attention_has_a_bound) {
  std::vector<Record> all = run();
  for (Record& r : all) r.ceiling_gflops = 1e6, r.copy_gbs = 3145.728;  // 12 x 8 x 256 x 256 bytes take 2 us
  const std::string at_256 = "subject = \"cpu_forward\"\nrows = {len = 256}\n";
  EXPECT_EQ(judged("unfused = 1.0\n" + at_256, all).status, BarStatus::met);
  EXPECT_EQ(judged("unfused = 1.2\n" + at_256, all).status, BarStatus::missed);
}

TEST(Bars, mistakes_of_a_file_are_named_with_their_line) {
  std::string deep;
  for (int n = 0; n < 200000; ++n) deep += "a.";
  const struct { std::string text; const char* words; } all[] = {
      {"", "b.toml: holds no [[bar]]"},
      {"x = 1\n", "b.toml:1: x: is not one of bar"},
      {"[[bar]]\nratio = 1\n", "b.toml:1: bar: has no name"},
      {"[[bar]]\nname = \"a\"\n", "b.toml:1: a: demands nothing; accepted are ratio, mean"},
      {"[[bar]]\nname = \"a\"\nratio = 1\n", "a: has a ratio and no 'over' to compare with"},
      {"[[bar]]\nname = \"a\"\nover = \"fa3\"\ngbs = 1\n", "a: has 'over' and neither ratio nor mean"},
      {"[[bar]]\nname = \"a\"\nratoi = 1\n", "b.toml:3: ratoi: is not one of name, subject, over, ratio"},
      {"[[bar]]\nname = \"a\"\nratio = \"1\"\nover = \"x\"\n", "b.toml:3: ratio: accepted is a number of at"},
      {"[[bar]]\nname = \"a\"\nratio = 1\nover = \"x\"\nrows = {dims = 64}\n", "dims: is not one of pass, dtype"},
      {"[[bar]]\nname = \"a\"\nratio = 1\nover = \"x\"\nrows = {dim = \"64\"}\n", "dim: accepted are whole numbers"},
      {"[[bar]]\nname = \"a\"\nratio = 1\nover = \"x\"\nrows = {len = []}\n", "len: the list is empty"},
      {"[[bar]]\nname = \"a\"\nratio = 1\nover = \"x\"\ncount = 0\n", "count: accepted is a whole number above 0"},
      {"[[bar]]\nname = \"a\"\nratio = 1\nover = \"x\"\nshare = 2\n", "share is at most 1"},
      {"[[bar]]\nname = \"a\"\nrate = 1\n", "a: has a rate and no 'of'"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nof = {x = \"y\"}\n", "a: has 'of' and no rate"},
      {"[[bar]]\nname = \"a\"\nrate = 1\nof = \"x\"\n", "b.toml:4: of: accepted is a table of words"},
      {"[[bar]]\nname = \"a\"\nratoi = 1\n", "did you mean ratio?"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nless_floor = true\n", "a: less_floor needs a ratio"},
      {"[[bar]]\nname = \"a\"\nsubject = \"x\"\nover = \"x\"\nratio = 1\n", "a: compares x with itself: 'subject' and"},
      {"[[bar]\n", "b.toml:1: "},
      {"[[bar]]\nname = \"a\"\n" + deep + "b = 1\n", "b.toml:3: has more than 100 dots"},
      {"[" + deep + "b]\nc = 1\n", "b.toml:1: has more than 100 dots"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nrows = {pass = \"forwrad\"}\n",
       "b.toml:4: pass: 'forwrad' is not one of forward, backward, train; did you mean 'forward'?"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\n[bar.rows]\ndtype = [\"f32\",\n\"bf61\"]\n",
       "b.toml:6: dtype: 'bf61' is not one of f64, f32, f16, bf16, e4m3; did you mean 'bf16'? and their mixes"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nrows = {dtype = \"bf16/bf16/bf16\"}\n", "is written 'bf16' in a problem line"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nrows = {mask = \"casual\"}\n", "mask: 'casual' is not one of full, causal"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nrows = {mask = \"casual\"}\n", "did you mean 'causal'?"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nrows = {timing = \"colt\"}\n", "timing: 'colt' is not one of cold, warm"},
      {"[[bar]]\nname = \"a\"\ngbs = 1\nrows = {variant = \"nsaa\"}\n", "variant: 'nsaa' is not a variant"},
  };
  for (const auto& [text, words] : all) {
    std::vector<Bar> bars;
    const Status s = read_bars(text, "b.toml", bars);
    EXPECT_NE(s.message.find(words), std::string::npos) << text << " -> " << s.message;
  }
}

TEST(Bars, every_word_of_a_problem_line_is_one_of_rows) {
  for (const char* rows : {"pass = [\"forward\", \"backward\"]", "dtype = [\"f64\", \"e4m3\", \"bf16/bf16/f32\"]",
                           "mask = [\"full\", \"window\", \"window255,0\", \"causal@top_left\"]",
                           "timing = [\"cold\", \"graph\"]", "variant = [\"nsa\", \"dilated\", \"ring\"]"}) {
    std::vector<Bar> bars;
    EXPECT_EQ(read_bars(join("[[bar]]\nname = \"a\"\ngbs = 1\nrows = {", rows, "}\n"), "b.toml", bars).message, "");
  }
}

TEST(BarsCommand, says_what_is_met_and_fails_unless_all_are) {
  std::ofstream file(temporary("bars.jsonl"));
  for (const Record& r : run()) file << to_json(r) << "\n";
  file.close();
  std::ofstream(temporary("good.toml")) << "[[bar]]\nname = \"ahead\"\nover = \"torch:sdpa\"\nratio = 1.4\n";
  std::ofstream(temporary("bad.toml")) << "[[bar]]\nname = \"ahead\"\nover = \"torch:sdpa\"\nratio = 1.4\n"
                                          "[[bar]]\nname = \"far\"\nover = \"fa3\"\nratio = 1\n";
  const Ran good = attune_says({"bars", temporary("good.toml"), temporary("bars.jsonl")});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(good.out, "MET      ahead: 3 rows, least 1.50x, mean 2.29x\nall 1 met\n");
  const Ran bad = attune_says({"bars", temporary("bad.toml"), temporary("bars.jsonl")});
  EXPECT_EQ(bad.code, 1);
  EXPECT_TRUE(has(bad.out, "MISSED   far: 3 rows\n           forward f32 b1 h8 q256 k256 d64 causal: nothing to "
                           "compare cpu_forward with: fa3 was not measured\n")) << bad.out;
  EXPECT_EQ(bad.err, "attune bars: 1 of 2 met; 1 missed, 0 unclear, 0 without rows\n");
}

}  // namespace
}  // namespace attune
