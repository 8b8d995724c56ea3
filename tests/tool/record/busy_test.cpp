// SPDX-License-Identifier: Apache-2.0
// What records tell about the machine: quiet and loaded ones, what moved between two sets, and what nothing tells.
#include "tool/record/busy.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/tool/records.h"
#include "tests/tool/report/reports.h"
#include "tests/tool/spawn.h"
#include "tool/record/show.h"

namespace attune {
namespace {

Record with(const Load& load) {
  Record r = record("cpu_forward", 512, 1000);
  r.load = load;
  return r;
}

// Rows of a machine with nothing else to do: some work of the system, and turns that a thread loses now and then.
TEST(Busy, a_quiet_machine_is_remarked_in_0_of_20_runs) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> system(0, 0.04), lost(0, 0.02), stolen(0, 0.01), seconds(0.1, 10);
  for (int run = 0; run < 20; ++run) {
    std::vector<Record> records;
    for (int n = 0; n < 48; ++n)
      records.push_back(with({.seconds = seconds(random), .cpus = 2, .waited = lost(random), .used = 0.95,
                              .others = system(random), .steal = stolen(random), .average = 2, .runnable = 3}));
    EXPECT_EQ(busy_summary(records), "") << run;
  }
}

// Readings of 20 rows of 1 and 2 threads on 2 CPUs, with two or three compilers at work on them: seconds, CPUs, waited,
// used, others, steal (Xeon at 2.5 GHz, 2026-11-18).
TEST(Busy, a_loaded_machine_is_remarked_in_20_of_20_runs) {
  const std::vector<Load> readings = {
      {0.154, 2, 0.2738, 0.3712, 0.6288, 0.0}, {0.247, 2, 0.6393, 0.3555, 0.6445, 0.0},
      {0.228, 2, 0.3091, 0.3424, 0.6576, 0.0}, {0.51, 2, 0.6206, 0.3652, 0.6348, 0.0},
      {0.2, 2, 0.261, 0.3693, 0.6307, 0.0}, {0.484, 2, 0.5963, 0.4057, 0.5943, 0.0},
      {0.164, 2, 0.2919, 0.3627, 0.6373, 0.0}, {0.216, 2, 0.645, 0.3228, 0.6772, 0.0},
      {0.233, 2, 0.5052, 0.2504, 0.7496, 0.0}, {0.512, 2, 0.5886, 0.4085, 0.5915, 0.0},
      {0.199, 2, 0.3035, 0.356, 0.644, 0.0}, {0.475, 2, 0.6151, 0.3278, 0.6616, 0.0},
      {0.33, 2, 0.3622, 0.3186, 0.6814, 0.0}, {0.338, 2, 0.657, 0.3196, 0.6804, 0.0},
      {0.509, 2, 0.2682, 0.3652, 0.6348, 0.0}, {0.502, 2, 0.6167, 0.3792, 0.6208, 0.0},
      {0.52, 2, 0.4859, 0.2544, 0.7456, 0.0}, {0.419, 2, 0.6671, 0.3276, 0.6606, 0.0118},
      {0.115, 2, 0.4323, 0.2827, 0.7173, 0.0}, {0.188, 2, 0.728, 0.2676, 0.7324, 0.0},
  };
  ASSERT_EQ(readings.size(), 20u);
  for (const Load& l : readings)
    EXPECT_TRUE(has(busy_summary(std::vector{with(l)}), "busy machine: 1 of 1 record was measured while other "))
        << l.others;
}

TEST(Busy, the_summary_counts_records_and_names_the_largest_readings) {
  std::vector<Record> records(4, with({.seconds = 2, .cpus = 2, .waited = 0.001, .others = 0.01}));
  EXPECT_EQ(busy_summary(records), "");
  EXPECT_EQ(busy_summary({}), "");
  records[1].load.others = 0.3, records[2].load.others = 0.48;
  EXPECT_EQ(busy_summary(records), "busy machine: 2 of 4 records were measured while other processes took 48 % of 2 "
                                   "CPUs at most; their times may be too long");
  records[1].load.waited = 0.2;
  EXPECT_EQ(busy_summary(records), "busy machine: 2 of 4 records were measured while other processes took 48 % of 2 "
                                   "CPUs, threads waited for a CPU 20 % of the time at most; their times are too long");
  records[2].samples_ns.clear();  // not measured
  EXPECT_TRUE(has(busy_summary(records), ": 1 of 3 records was measured while other processes took 30 % of 2 CPUs, "));
}

TEST(Busy, threads_that_only_wait_for_each_other_are_not_other_processes) {
  const Record r = with({.seconds = 2, .cpus = 2, .waited = 0.5, .others = 0.01, .steal = 0});
  EXPECT_EQ(busy_summary(std::vector{r}), "too few CPUs: 1 of 1 record was measured while threads waited for a CPU "
                                          "50 % of the time; its times are too long");
  const Record unknown = with({.seconds = 2, .waited = 0.5});
  EXPECT_TRUE(has(busy_summary(std::vector{unknown}), "busy machine: 1 of 1 record was measured while threads "));
}

TEST(Busy, a_gpu_is_judged_by_its_own_use) {
  Record r = with({.seconds = 2, .cpus = 2, .waited = 0.5, .others = 0.9});
  r.threads = 0, r.device = "cuda:0";
  EXPECT_EQ(busy_summary(std::vector{r}), "");
  r.load.gpu_processes = 1, r.load.gpu_others = 0.4;
  EXPECT_EQ(busy_summary(std::vector{r, with({})}), "busy machine: 1 of 2 records was measured while other processes "
                                                    "took 40 % of the GPU; its times are too long");
}

// Rows of a peer whose OpenMP threads were starved have shown up to 1642x.
TEST(Busy, no_verdict_against_a_peer_whose_threads_may_have_waited) {
  const Load quiet{.seconds = 2, .cpus = 2, .waited = 0.001, .used = 0.9, .others = 0.01, .steal = 0};
  Load waited = quiet, stolen = quiet, hidden = quiet, beside = quiet;
  waited.waited = 0.4, waited.others = 0.5, stolen.steal = 0.06, hidden.waited = -1, hidden.others = 0.3;
  beside.others = 0.12;  // on a CPU that the timed threads did not need
  Record r = with(quiet);
  r.baseline = "torch:sdpa", r.verdict = "FASTER", r.ratio = {193, {150, 240, 0.96}};
  EXPECT_EQ(verdict_text(r), "FASTER");
  r.load = beside;
  EXPECT_EQ(verdict_text(r), "FASTER");
  for (const Load& load : {waited, stolen, hidden}) {
    r.load = load;
    EXPECT_EQ(verdict_text(r), "UNCLEAR") << load.others;
    EXPECT_TRUE(has(row_text(r), "UNCLEAR against torch:sdpa")) << row_text(r);
    EXPECT_TRUE(has(table({r}, {}), "no verdict against a peer")) << table({r}, {});
  }
  for (const char* const peer : {"flash_attn", "fa3", "my.py:attention"}) {
    r.baseline = peer;
    EXPECT_EQ(verdict_text(r), "UNCLEAR") << peer;
  }
  r.baseline = "cpu_standard";  // threads of one pool
  EXPECT_EQ(verdict_text(r), "FASTER");
  r.subject = "torch:math", r.peer = true;
  EXPECT_EQ(verdict_text(r), "UNCLEAR");
}

TEST(Busy, an_a_a_spread_above_5_percent_gets_one_line) {
  std::vector<Record> records(3, with({}));
  for (Record& r : records) r.aa_spread = 0.05;
  EXPECT_EQ(spread_summary(records), "");
  records[1].aa_spread = 4.05, records[1].threads = 1, records[2].aa_spread = 0.177;
  EXPECT_EQ(spread_summary(records),
            "A/A spread 405.0 % (warm, 1 thread): the machine was not steady, and smaller differences cannot be told");
}

TEST(Busy, is_the_first_caveat_of_a_report_and_a_column_of_every_row) {
  std::vector<Record> records(3, with({.seconds = 2, .cpus = 2, .waited = 0.001, .others = 0.01}));
  EXPECT_FALSE(has(report_of(records).caveats.at(0), "usy machine"));
  EXPECT_FALSE(has(to_markdown(report_of(records)), "| busy"));
  records[1].load.others = 0.48, records[1].load.waited = 0.4, records[2].aa_spread = 0.177;
  const Report report = report_of(records);
  EXPECT_EQ(report.caveats.at(0), "Busy machine: 1 of 3 records was measured while other processes took 48 % of 2 "
                                  "CPUs, threads waited for a CPU 40 % of the time; its times are too long.");
  EXPECT_TRUE(has(report.caveats.at(1), "A/A spread 17.7 % (warm, 2 threads): the machine was not steady"));
  const Table& rows = section(report, "rows").figures.at(0).table;
  EXPECT_EQ(rows.head.back(), "busy");
  EXPECT_EQ(rows.rows.at(0).back().text, "");
  EXPECT_EQ(rows.rows.at(1).back().text, busy_text(records[1]));
}

TEST(Busy, ceilings_that_vary_as_they_do_on_one_machine_are_no_change) {
  Record a = with({.cpu_mhz = 2500}), b = with({.cpu_mhz = 2450});
  a.ceiling = b.ceiling = "fmla", a.ceiling_gflops = 2747, b.ceiling_gflops = 2141;
  EXPECT_TRUE(machine_changes({&a}, {&b}, false).empty());
  b.ceiling = "avx2", b.ceiling_gflops = 100;  // of another instruction
  EXPECT_TRUE(machine_changes({&a}, {&b}, false).empty());
  EXPECT_TRUE(machine_changes({}, {}, true).empty());
}

}  // namespace
}  // namespace attune
