// SPDX-License-Identifier: Apache-2.0
// `attune bench` from outside: the records match the request.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "machine/host.h"
#include "tests/tool/burners.h"
#include "tests/tool/spawn.h"
#include "tool/bench/estimate.h"
#include "tool/bench/suites.h"

namespace attune {
namespace {

using nlohmann::json;
constexpr const char* kLine = "forward f32 b1 h1 q16 k16 d16 causal";

std::vector<json> records(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"bench", kLine, "--json", "--max-seconds", "0.02"};
  words.insert(words.end(), more.begin(), more.end());
  const Ran r = attune_says(words);
  EXPECT_EQ(r.code, 0) << r.err;
  std::vector<json> all;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
  return all;
}

TEST(Bench, rests_or_heats_only_where_asked) {
  const auto plain = records({});
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0]["rest_s"], 0);
  EXPECT_EQ(plain[0]["heat_s"], 0);
}

TEST(Bench, rested_and_hot_are_two_rows_of_one_run) {
  const auto both = records({"--rest", "2", "--hot", "3"});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["rest_s"], 2e-3);
  EXPECT_EQ(both[0]["heat_s"], 0);
  EXPECT_EQ(both[1]["rest_s"], 0);
  EXPECT_EQ(both[1]["heat_s"], 3e-3);
  const auto hot = records({"--hot", "3"});
  ASSERT_EQ(hot.size(), 1u);
  EXPECT_EQ(hot[0]["heat_s"], 3e-3);
}

TEST(Bench, a_busy_machine_is_in_the_records_and_in_one_line) {
  if (!Burners::can_be_seen()) GTEST_SKIP() << "this system hides its counters";
  const Burners burners;
  const Ran r = attune_says({"bench", "forward f32 b1 h2 q256 k256 d64 causal", "--json", "--max-seconds", "1"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.err, ": 1 of 1 record was measured while ")) << r.err;
  EXPECT_TRUE(has(r.err, "| busy: ")) << "the row: " << r.err;
  const json load = json::parse(r.out)["load"];
  if (Burners::can_fill_the_cpus()) {
    EXPECT_TRUE(has(r.err, "warning: busy machine: 1 of 1 record was measured while other processes took ")) << r.err;
    EXPECT_GE(load["others"], 0.1) << load;
  }
  EXPECT_GE(load["waited"], 0.05) << load;
  EXPECT_GE(load["cpus"], 1) << load;
}

TEST(Bench, takes_so_many_samples_and_warms_up_for_so_long) {
  const auto one = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", kLine, "--json", "--max-seconds", "2"});
    return json::parse(attune_says(more).out);
  };
  for (const size_t n : {size_t(1), size_t(37)}) {
    const json r = one({"--samples", std::to_string(n)});
    EXPECT_EQ(r["samples_ns"].size(), n);
    EXPECT_EQ(r["ended_by"], "samples");
    EXPECT_EQ(r["most_samples"], n);
  }
  EXPECT_GE(one({"--samples", "6", "--warm-up", "300ms"})["warm_up_s"], 0.3);
  EXPECT_LT(one({"--samples", "6", "--warm-up", "0ms"})["warm_up_s"], 0.3);
  for (const char* wrong : {"-1", "1.5", "2h", "s", "9999s"}) {
    const Ran r = attune_says({"bench", kLine, std::string("--warm-up=") + wrong});
    EXPECT_EQ(r.err, std::string("attune bench: --warm-up: '") + wrong +
                         "' is neither a number of calls to 1e+06 nor a "
                         "time to an hour, such as 2s or 50ms\n");
  }
  EXPECT_EQ(attune_says({"bench", kLine, "--samples", "0"}).code, 2);
}

TEST(Bench, rates_are_those_of_the_median_and_facts_are_there) {
  const json r = records({"--samples", "6", "--seed", "3"}).at(0);
  const double calls_s = 1e9 / r["median_ns"].get<double>();
  EXPECT_DOUBLE_EQ(r["sequences_s"], calls_s);
  EXPECT_DOUBLE_EQ(r["tokens_s"], 16 * calls_s);
  EXPECT_DOUBLE_EQ(r["queries_s"], 16 * calls_s);
  const json& from = r["provenance"];
  const std::string command = from["command"];
  EXPECT_TRUE(command.starts_with(std::string("attune bench '") + kLine + "' --json ")) << command;
  EXPECT_TRUE(from["gpu_sms"].is_null() && from["cudnn"].is_null() && from["gpu_bandwidth_gbs"].is_null()) << from;
}

TEST(Bench, a_missing_peer_is_a_row_and_the_run_goes_on) {
  std::filesystem::create_directories(temporary("no_torch"));
  std::ofstream(temporary("no_torch/torch.py")) << "raise ImportError('it is hidden')\n";
  const Ran r = attune_says({"bench", kLine, "--json", "--max-seconds", "0.02", "--peer", "torch"},
                            {"PYTHONPATH=" + temporary("no_torch")});
  EXPECT_EQ(r.code, 0) << r.err;
  std::vector<json> all;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
  ASSERT_EQ(all.size(), 3u) << r.out;
  int missing = 0, measured = 0;
  for (const json& record : all) {
    const std::string subject = record["subject"], message = record["message"];
    if (subject.starts_with("torch:")) {
      ++missing;
      EXPECT_EQ(record["status"], "unsupported");
      EXPECT_TRUE(has(message, subject + ": is not available: ")) << message;
      EXPECT_TRUE(has(message, " cannot import torch (it is hidden); pip install torch")) << message;
    } else {
      measured += record["status"] == "ok";
    }
  }
  EXPECT_EQ(missing, 2);
  EXPECT_EQ(measured, 1);
}

TEST(Bench, a_dry_run_marks_what_does_not_fit) {
  const std::string large = "forward f32 b4096 h1024 q65536 k65536 d256 full";
  const Ran r = attune_says({"bench", "--dry-run", kLine, large});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, std::string(kLine) + "\n" + large + ": does not fit into memory\n")) << r.out;
  EXPECT_TRUE(has(r.out, "\n1 row cannot fit into memory and will be reported as such\n")) << r.out;
}

TEST(Bench, a_row_fits_into_the_lesser_of_both_memories) {
  EXPECT_TRUE(fits(10, 100));
  EXPECT_FALSE(fits(50, 100));  // two copies exist while inputs are made
  EXPECT_TRUE(fits(10, 100, 10));
  EXPECT_FALSE(fits(10, 100, 9));
  EXPECT_TRUE(fits(50, 100, 1000));  // with a GPU, one copy on the host
  EXPECT_FALSE(fits(95, 100, 1000));
}

TEST(Bench, energy_is_a_time_and_of_gpus) {
  for (const char* seconds : {"1", "-1"}) {
    const Ran r = attune_says({"bench", kLine, "--energy", seconds});
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.err, "attune bench: --energy: must be from 0 to 3600 seconds, and needs a GPU\n");
  }
  for (const json& r : records({})) EXPECT_EQ(r.value("joules", 0.), 0);
  Bench b;
  b.device = {.kind = DeviceKind::cuda, .units = 132};
  Problem p;
  ASSERT_TRUE(parse(kLine, p).ok());
  const double without = estimated_seconds(p, b, 2);
  b.energy_seconds = 5;
  EXPECT_NEAR(estimated_seconds(p, b, 2) - without, 3 * 5., 1e-9);  // two peers and a backend
}

// A suite skips rows that would take hours, on any machine: its longest row takes exaflops.
TEST(Bench, a_dry_run_of_a_suite_says_what_takes_too_long) {
  Bench b;
  b.device.units = 2;
  BenchRow row;
  ASSERT_TRUE(parse_row("forward bf16 b8 h32 q2097152 k2097152 d64 full", row).ok());
  EXPECT_FALSE(is_too_slow(row, b)) << "a line is asked for by name";
  row.most_call_s = 200;
  EXPECT_TRUE(is_too_slow(row, b));
  ASSERT_TRUE(parse_row("forward bf16 b8 h32 q512 k512 d64 full", row).ok());
  row.most_call_s = 200;
  EXPECT_FALSE(is_too_slow(row, b));
  const Ran r = attune_says({"bench", "--suite", "memory", "--dry-run", "--json"});
  EXPECT_GT(json::parse(r.out)["too_large"].get<int>() + json::parse(r.out)["too_slow"].get<int>(), 0) << r.out;
  const Ran text = attune_says({"bench", "--suite", "long", "--dry-run"});
  EXPECT_EQ(has(text.out, ": may take too long\n"), has(text.out, " at the rate that is assumed before this machine is "
                                                                  "measured\n")) << text.out;
  const Ran nothing = attune_says({"bench", kLine, "--dry-run", "--resume", "--out", temporary("none.jsonl")});
  EXPECT_EQ(nothing.err, "") << "no row is in a file that is not there";
  EXPECT_TRUE(has(nothing.out, "\n1 row, about ") && has(nothing.out, " second")) << nothing.out;
}

TEST(Bench, a_run_that_measured_nothing_fails_and_says_what_its_rows_were) {
  const Ran r = attune_says({"bench", kLine, "--backend", "cpu_backward"});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(r.err.ends_with("attune bench: nothing was measured: 1 unsupported\n")) << r.err;
}

// Estimated from the mask instead of the lists, a window would take hours.
TEST(Bench, a_row_of_block_lists_is_reckoned_by_its_lists) {
  Bench b;
  b.device.units = 2;
  const auto seconds = [&](const char* line) {
    BenchRow row;
    EXPECT_EQ(parse_row(line, row).message, "");
    return call_seconds(row.problem, b);
  };
  const double dense = seconds("forward bf16 b2 h12 q131072 k131072 d64 causal");
  const double listed = seconds("forward bf16 b2 h12 q131072 k131072 d64 causal blocks128x128x1 | "
                                "streaming sink=128 local=2048");
  EXPECT_LT(listed, 0.1 * dense);  // in the middle, a row shows 18 of 512 blocks
  EXPECT_GT(listed, 0.03 * dense);
  const double whole = seconds("forward bf16 b2 h12 q4096 k4096 d64 causal blocks128x128x1 | random density=1");
  EXPECT_DOUBLE_EQ(whole, seconds("forward bf16 b2 h12 q4096 k4096 d64 causal"));
}

TEST(Bench, rest_is_part_of_the_time_that_a_subject_has) {
  Bench b;
  b.device = {.kind = DeviceKind::cuda, .units = 132};
  b.timing.max_seconds = 0.15;
  Problem p;
  ASSERT_TRUE(parse("forward bf16 b8 h32 q1024 k1024 d64 full", p).ok());
  const double without = estimated_seconds(p, b, 3);
  b.timing.rest_seconds = 0.02;
  EXPECT_DOUBLE_EQ(estimated_seconds(p, b, 3), without);
}

// Four backends and three peers; fewer for fp8.
TEST(Bench, a_whole_seq_sweep_is_reckoned_at_less_than_four_minutes_of_an_h200) {
  const BenchSuite& suite = *find_suite("seq-sweep");
  Bench b;
  b.device = {.kind = DeviceKind::cuda, .units = 132};
  b.timing.max_seconds = suite.max_seconds, b.timing.rest_seconds = 1e-3 * suite.rest_ms;
  std::vector<BenchRow> rows;
  ASSERT_EQ(suite_rows("seq-sweep", rows).message, "");
  double seconds = 0;
  for (const BenchRow& row : rows) seconds += estimated_seconds(row.problem, b, 6);
  EXPECT_LT(seconds, 240);
  EXPECT_GT(seconds, 100) << "which is too good to be a reckoning";
}

TEST(Bench, a_line_behind_an_option_of_several_names_is_a_line) {
  const Ran backends = attune_says({"bench", "--dry-run", "--backend", "cpu_forward,cpu_standard", kLine});
  EXPECT_EQ(backends.code, 0) << backends.err;
  const Ran modes = attune_says({"bench", "--dry-run", "--timing", "warm,cold", kLine});
  EXPECT_EQ(modes.code, 0) << modes.err;
}

TEST(Bench, a_row_that_stands_there_twice_is_measured_once) {
  EXPECT_EQ(records({kLine}).size(), 1u);
  EXPECT_EQ(records({"forward f32 b1 h1 q8 k8 d16 causal"}).size(), 2u);
  // Three rows of d64 are in both parts of the suite; a resumed run would find each of them done.
  const Ran suite = attune_says({"bench", "--suite", "fa2-vs-sdpa", "--dry-run", "--json"});
  EXPECT_EQ(json::parse(suite.out)["rows"], 66);
}

TEST(Bench, a_backend_that_is_named_twice_is_one_subject) {
  EXPECT_EQ(records({"--backend", "cpu_forward,all,cpu_forward", "--no-check"}).size(),
            records({"--backend", "all", "--no-check"}).size());
}

TEST(Bench, a_rest_below_nothing_or_without_an_end_is_refused) {
  for (const char* word : {"--rest", "--hot", "--energy"})
    for (const char* time : {"-1", "nan", "inf", "1e9"}) {
      const Ran r = attune_says({"bench", "--dry-run", kLine, word, time});
      EXPECT_EQ(r.code, 2) << word << " " << time;
      EXPECT_EQ(r.err, word == std::string_view("--energy")
                           ? "attune bench: --energy: must be from 0 to 3600 seconds, and needs a GPU\n"
                           : join("attune bench: ", word, ": ", std::strcmp(time, "1e9") ? time : "1e+09",
                                  " is not from 0 to 3600000 milliseconds\n"));
    }
}

TEST(Bench, shares_are_all_rows_once) {
  const auto rows = [](const char* share) {
    return attune_says({"bench", "--dry-run", "--len", "64-1024*2", "--share", share});
  };
  size_t lines = 0;
  for (const char* share : {"1/3", "2/3", "3/3"}) {
    const Ran r = rows(share);
    EXPECT_EQ(r.code, 0) << r.err;
    for (const char* length : {"q64 ", "q128 ", "q256 ", "q512 ", "q1024 "}) lines += r.out.find(length) != r.out.npos;
  }
  EXPECT_EQ(lines, 5u);
  for (const char* share : {"0/3", "4/3", "2", "2/", "/2", "2/3x", "-1/3"})
    EXPECT_EQ(rows(share).err, join("attune bench: --share: '", share, "' is not a part such as 2/4, the second of "
                                    "four\n"));
  EXPECT_EQ(rows("6/6").err, "attune bench: --share: 6/6 of 5 rows is none\n");
  EXPECT_EQ(attune_says({"bench", "--dry-run", kLine, "--share", "1/1", "--base", "dilated rates=1,2"}).err,
            "attune bench: --share: not accepted with --base, which compares rows with each other\n");
}

TEST(Bench, a_burst_without_rest_and_sustained_without_work_are_refused) {
  const Ran burst = attune_says({"bench", "--dry-run", kLine, "--burst", "--rest", "0"});
  EXPECT_EQ(burst.code, 2);
  EXPECT_EQ(burst.err, "attune bench: --burst: given with --rest 0; a burst needs a rest before every batch\n");
  const Ran sustained = attune_says({"bench", "--dry-run", kLine, "--sustained", "--hot", "0"});
  EXPECT_EQ(sustained.code, 2);
  EXPECT_EQ(sustained.err, "attune bench: --sustained: given with --hot 0; it needs work before every batch\n");
  for (const char* word : {"--rest", "--hot"})
    EXPECT_EQ(attune_says({"bench", "--dry-run", kLine, "--burst", "--sustained", word, "5"}).code, 0) << word;
}

TEST(Bench, a_suite_has_a_time_of_its_own_that_a_word_changes) {
  const auto minutes = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"bench", "--suite", "seq-sweep", "--dry-run", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return nlohmann::json::parse(attune_says(words).out)["estimated_minutes"].get<double>();
  };
  EXPECT_LT(minutes({}), minutes({"--max-seconds", "2"}));
  EXPECT_LT(minutes({}), minutes({"--peer", "torch"}));  // peers take time too
  const Ran none = attune_says({"bench", kLine, "--max-seconds", "0"});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err, "attune bench: --max-seconds: 0 is not above 0 and at most 3600\n");
}

TEST(Bench, limits_are_ones_that_mean_something) {
  for (const auto& [option, value, sentence] :
       {std::tuple("--precision", "2", "2 is not above 0 and at most 0.5, half of the median"),
        {"--precision", "nan", "nan is not above 0 and at most 0.5, half of the median"},
        {"--max-seconds", "inf", "inf is not above 0 and at most 3600"}}) {
    const Ran r = attune_says({"bench", kLine, option, value});
    EXPECT_EQ(r.code, 2) << option;
    EXPECT_EQ(r.err, join("attune bench: ", option, ": ", sentence, "\n"));
  }
}

TEST(Bench, the_spread_of_a_single_subject_is_measured_too) {
  const std::vector<json> one = records({});
  ASSERT_EQ(one.size(), 1u);
  ASSERT_TRUE(one[0]["aa_spread"].is_number()) << one[0]["aa_spread"];
  EXPECT_GT(one[0]["aa_spread"], 0);
  EXPECT_GE(one[0]["samples_ns"].size(), 6u);
}

TEST(Bench, a_dry_run_says_that_it_does_not_look_into_the_file_to_resume) {
  const std::string path = temporary("some.jsonl");
  const Ran none = attune_says({"bench", kLine, "--dry-run", "--resume", "--out", path});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_EQ(none.err, "") << "there is no such file";
  EXPECT_EQ(attune_says({"bench", kLine, "--max-seconds", "0.01", "--out", path}).code, 0);
  EXPECT_EQ(attune_says({"bench", kLine, "--dry-run", "--resume", "--out", path}).err,
            "the estimate includes rows that are already in " + path + "\n");
}

TEST(Bench, a_backend_that_is_the_baseline_is_measured_too) {
  const std::vector<json> both = records({"--baseline", "cpu_standard"});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["subject"], "cpu_forward");
  EXPECT_EQ(both[0]["baseline"], "cpu_standard");
  EXPECT_EQ(both[1]["subject"], "cpu_standard");
  EXPECT_EQ(records({"--baseline", "cpu_forward"}).size(), 1u);   // already the planner's choice
  EXPECT_EQ(records({"--baseline", "cpu_backward"}).size(), 1u);  // does not support the problem
}

TEST(Bench, a_baseline_that_nobody_is_called_is_refused) {
  const Ran r = attune_says({"bench", kLine, "--dry-run", "--backend", "all", "--baseline", "cpu_standrad"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "attune bench: --baseline: 'cpu_standrad' is neither one of --peer nor one of ")) << r.err;
  EXPECT_TRUE(has(r.err, "cpu_standard")) << r.err;
  EXPECT_EQ(attune_says({"bench", kLine, "--dry-run", "--baseline", "torch:math"}).code, 2);
  EXPECT_EQ(attune_says({"bench", kLine, "--dry-run", "--peer", "torch", "--baseline", "torch:math"}).code, 0);
  EXPECT_EQ(attune_says({"bench", kLine, "--dry-run", "--backend", "all", "--baseline", "cpu_standard"}).code, 0);
}

}  // namespace
}  // namespace attune
