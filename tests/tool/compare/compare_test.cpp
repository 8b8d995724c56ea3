// SPDX-License-Identifier: Apache-2.0
// Verdicts over two sets of records: what is detected, what raises no alarm, what stays undecided; and the output of
// the command. The detection limits are tested on synthetic sets with measured noise.
#include "tool/compare/write.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/tool/compare/noise.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

struct Draw {  // the same on every machine
  uint64_t state;
  size_t below(size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return size_t((state >> 33) % n);
  }
};

Record record(std::vector<double> samples, int length = 512) {
  Record r;
  r.problem = join("forward f32 b1 h8 q", length, " k", length, " d64 causal");
  r.subject = "cpu_forward";
  r.samples_ns = std::move(samples);
  r.median_ns = median(r.samples_ns);
  r.parity.verdict = CheckVerdict::pass;
  return r;
}
Record steady(double ns, int length = 512) {
  std::vector<double> samples;
  for (int n = 0; n < 40; ++n) samples.push_back(ns * (1 + 0.0005 * (n % 5 - 2)));
  return record(std::move(samples), length);
}

// Five processes: each draws its samples from those of one measured process, and stops by the engine's rule.
std::vector<Record> synthetic(const Noise& noise, double factor, Draw& draw) {
  std::vector<Record> runs;
  for (int n = 0; n < 5; ++n) {
    const auto& process = noise[draw.below(noise.size())];
    std::vector<double> samples;
    const auto enough = [&] { return half_width(median_interval(samples), median(samples)) <= 0.003; };
    while (samples.size() < 32 || (samples.size() < 3000 && !enough()))
      for (size_t more = 32 + samples.size() / 2; more > 0; --more)
        samples.push_back(33.5 * factor * process[draw.below(process.size())]);
    runs.push_back(record(std::move(samples)));
    runs.back().aa_spread = kNoiseSpread;
  }
  return runs;
}
Changes tries(const Noise& noise, double factor) {
  Changes all;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Draw draw{seed};
    const auto before = synthetic(noise, 1, draw), after = synthetic(noise, factor, draw);
    all.rows.push_back(compare(before, after, {}).rows.at(0));
  }
  return all;
}

class CompareNoise : public testing::TestWithParam<const Noise*> {};
INSTANTIATE_TEST_SUITE_P(Measured, CompareNoise, testing::Values(&kForwardNoise, &kStandardNoise));

TEST(Agreement, counts_rows_whose_times_are_within_a_share_either_way) {
  const std::vector<Record> first = {steady(1000, 64), steady(1000, 128), steady(1000, 256), steady(1000, 512)};
  std::vector<Record> second = {steady(1019, 64), steady(982, 128), steady(1030, 256), steady(960, 512)};
  Changes c = compare(first, second, {});
  const Agreement a = agreement(c, 0.02, {});
  EXPECT_EQ(a.rows, 4);
  EXPECT_EQ(a.agreeing(), 2);
  ASSERT_EQ(a.apart.size(), 2u);
  EXPECT_NEAR(a.apart[0].apart, 1000. / 960 - 1, 1e-9);  // the farthest first
  EXPECT_NEAR(a.farthest, 1000. / 960 - 1, 1e-9);
  EXPECT_EQ(agreement(c, 0.05, {}).agreeing(), 4);
  second.pop_back();
  second.push_back(steady(1000, 1024));  // one row missing, one new, one wrong
  second[0].parity.verdict = CheckVerdict::fail;
  c = compare(first, second, {});
  EXPECT_EQ(agreement(c, 0.02, {}).rows, 5);
  EXPECT_EQ(agreement(c, 0.02, {}).agreeing(), 1);
  EXPECT_TRUE(std::isinf(agreement(c, 0.02, {}).apart[0].apart));
  EXPECT_EQ(agreement(c, 0.02, {.missing_is_fine = true}).rows, 3);
  EXPECT_EQ(agreement(c, 0.02, {.missing_is_fine = true}).agreeing(), 1);
}

TEST_P(CompareNoise, a_slow_down_of_3_percent_is_caught_in_95_of_100) {
  EXPECT_GE(tries(*GetParam(), 1.03).count(Change::slower), 95);
}
TEST_P(CompareNoise, a_slow_down_of_5_percent_is_caught_in_99_of_100) {
  EXPECT_GE(tries(*GetParam(), 1.05).count(Change::slower), 99);
}
TEST_P(CompareNoise, a_slow_down_of_10_percent_is_always_caught) {
  EXPECT_EQ(tries(*GetParam(), 1.10).count(Change::slower), 100);
}
TEST_P(CompareNoise, a_thing_against_itself_raises_no_alarm) {
  const Changes all = tries(*GetParam(), 1);
  EXPECT_EQ(all.count(Change::slower) + all.count(Change::faster), 0);
  EXPECT_GE(all.count(Change::same), 50);  // guards against a test that never reports anything
}

Change only(const std::vector<Record>& before, const std::vector<Record>& after, const CompareSettings& s = {}) {
  const Changes c = compare(before, after, s);
  EXPECT_EQ(c.rows.size(), 1u);
  return c.rows.empty() ? Change::added : c.rows[0].change;
}

TEST(Compare, every_verdict_has_its_case) {
  EXPECT_EQ(only({steady(1000)}, {steady(1000)}), Change::same);
  EXPECT_EQ(only({steady(1000)}, {steady(1050)}), Change::slower);
  EXPECT_EQ(only({steady(1000)}, {steady(950)}), Change::faster);
  EXPECT_EQ(only({steady(1000)}, {steady(1010)}), Change::unclear);  // exactly the margin: neither
  EXPECT_EQ(only({}, {steady(1000)}), Change::added);
  EXPECT_EQ(only({steady(1000)}, {}), Change::missing);
  Record failed = steady(1000);
  failed.status = RecordStatus::failed, failed.message = "cpu_forward: it broke";
  EXPECT_EQ(only({steady(1000)}, {failed}), Change::broken);
  EXPECT_EQ(only({}, {failed}), Change::broken);
  Record wrong = steady(500);
  wrong.parity.verdict = CheckVerdict::fail;
  EXPECT_EQ(only({steady(1000)}, {wrong}), Change::broken);  // however fast
}

TEST(Compare, what_does_not_fit_the_memory_is_broken_only_where_it_did) {
  Record large = steady(1000);
  large.status = RecordStatus::oom, large.samples_ns.clear(), large.median_ns = 0;
  EXPECT_EQ(only({steady(1000)}, {large}), Change::broken);
  EXPECT_TRUE(compare({large}, {large}, {}).rows.empty());
  EXPECT_EQ(only({large}, {steady(1000)}), Change::added);
}

TEST(Compare, what_was_right_before_and_is_not_checked_now_is_broken) {
  for (const CheckVerdict verdict : {CheckVerdict::unchecked, CheckVerdict::none}) {
    Record now = steady(1000);
    now.parity.verdict = verdict, now.parity.message = "not asked for";
    const Changes c = compare({steady(1000)}, {steady(1000), now}, {});
    ASSERT_EQ(c.rows.size(), 1u);
    EXPECT_EQ(c.rows[0].change, Change::broken);
    EXPECT_EQ(c.rows[0].note, "the result was correct before and is not checked now: not asked for");
    EXPECT_EQ(only({now}, {now}), Change::same);  // of what cannot be checked at all
    EXPECT_EQ(only({now}, {steady(1000)}), Change::same);
    EXPECT_EQ(only({}, {now}), Change::added);
  }
  Record floor = steady(1000);
  floor.parity.verdict = CheckVerdict::pass_at_floor;
  EXPECT_EQ(only({steady(1000)}, {floor}), Change::same);
}

TEST(Compare, margin_and_spread_of_either_side_must_be_passed) {
  EXPECT_EQ(only({steady(1000)}, {steady(1050)}, {.margin = 0.10}), Change::same);
  Record loud = steady(1030);
  loud.aa_spread = 0.045;
  EXPECT_EQ(only({steady(1000)}, {loud}), Change::same);
  loud = steady(1000), loud.aa_spread = 0.045;
  EXPECT_EQ(only({loud}, {steady(1030)}), Change::same);
}

// On a machine with a large A/A spread, a result ten times slower must not count as the same.
TEST(Compare, a_spread_that_hides_everything_is_unclear_and_never_same) {
  Record loud = steady(1000);
  loud.aa_spread = 28;
  const Changes c = compare({loud}, {steady(10000)}, {});
  ASSERT_EQ(c.rows.size(), 1u);
  EXPECT_EQ(c.rows[0].change, Change::unclear);
  EXPECT_EQ(c.rows[0].note, "the A/A spread is 2800.0 %: no smaller difference can be told");
  EXPECT_EQ(only({loud}, {steady(1080)}), Change::unclear);
  EXPECT_EQ(only({loud}, {steady(1020)}), Change::same);                    // within the spread of a quiet machine
  EXPECT_EQ(only({loud}, {steady(1080)}, {.margin = 0.10}), Change::same);  // below the given margin
  EXPECT_EQ(only({loud}, {steady(1000 * 50)}), Change::slower);
}

TEST(Compare, another_clock_is_no_change_of_the_code) {
  Record before = steady(1000), after = steady(1100);
  before.samples_mhz.assign(40, 1980), after.samples_mhz.assign(40, 1800);
  const Changes c = compare({before}, {after}, {});
  EXPECT_EQ(c.rows[0].change, Change::unclear);
  EXPECT_NEAR(c.rows[0].cycles.value, 1, 1e-3);
  EXPECT_EQ(c.rows[0].note, "SLOWER by time and SAME by cycles: the clock was 9.1 % lower");
  after.samples_mhz.assign(40, 1980);
  EXPECT_EQ(only({before}, {after}), Change::slower);
  after = steady(1000), after.samples_mhz.assign(40, 2200);  // as fast only because of the higher clock
  EXPECT_EQ(only({before}, {after}), Change::unclear);
  after = steady(1100), after.samples_mhz.assign(7, 1800);   // not one per sample: ignored
  EXPECT_EQ(only({before}, {after}), Change::slower);
}

TEST(Compare, runs_that_disagree_widen_the_interval) {
  const std::vector<Record> before = {steady(1000), steady(1040), steady(960)};
  const std::vector<Record> after = {steady(1050), steady(1092), steady(1008)};
  EXPECT_EQ(only(before, after), Change::unclear);
  EXPECT_EQ(only({steady(1000), steady(1001), steady(999)}, {steady(1050), steady(1051), steady(1049)}),
            Change::slower);
  std::vector<Record> astray, now;
  for (const double ns : {1000.0, 1001.0, 999.0, 1002.0, 998.0, 1000.0, 1300.0}) astray.push_back(steady(ns));
  for (const double ns : {1050.0, 1051.0, 1049.0, 1052.0, 1050.0, 1048.0, 1050.0}) now.push_back(steady(ns));
  EXPECT_EQ(only(astray, now), Change::slower);  // one outlier in seven hides nothing
  const Changes one = compare({steady(1000)}, {steady(1000)}, {});
  ASSERT_EQ(one.caveats.size(), 1u);
  EXPECT_TRUE(has(one.caveats[0], "one run per side"));
  EXPECT_TRUE(compare(before, after, {}).caveats.empty());
}

TEST(Compare, rows_that_asked_something_else_are_not_compared) {
  const Record base = steady(1000);
  for (const auto& other : {+[](Record& r) { r.subject = "cpu_standard"; }, +[](Record& r) { r.mode = "cold"; },
                            +[](Record& r) { r.threads = 2; }, +[](Record& r) { r.layout = "bshd"; },
                            +[](Record& r) { r.pattern = "local"; }, +[](Record& r) { r.heat_s = 0.04; },
                            +[](Record& r) { r.distribution = "zeros"; }}) {
    Record r = base;
    other(r);
    const Changes c = compare({base}, {r}, {});
    ASSERT_EQ(c.rows.size(), 2u);
    EXPECT_EQ(c.count(Change::missing), 1);
    EXPECT_EQ(c.count(Change::added), 1);
  }
}

TEST(Compare, what_nobody_measured_is_no_row_and_unsupported_now_is_missing) {
  Record no = steady(1000);
  no.status = RecordStatus::unsupported;
  EXPECT_TRUE(compare({no}, {no}, {}).rows.empty());
  EXPECT_EQ(only({steady(1000)}, {no}), Change::missing);
}

TEST(Compare, sets_of_two_machines_say_so) {
  Record before = steady(1000), after = steady(1000);
  before.provenance.gpu_uuid = "GPU-1", after.provenance.gpu_uuid = "GPU-2";
  EXPECT_EQ(compare({before}, {after}, {}).caveats.at(0), "the card differs: GPU-1 before, GPU-2 after");
}

TEST(Compare, one_program_that_became_slower_ran_on_a_machine_that_changed) {
  Record before = steady(1000), after = steady(1200);
  before.provenance.binary = after.provenance.binary = "0123456789abcdef";
  const auto told = [&](const char* what) {
    std::string all;
    for (const std::string& s : compare({before}, {after}, {}).caveats) all += s + "\n";
    return has(all, what);
  };
  constexpr const char* kSame =
      "the machine changed, not the code: both sides are the same program (binary 0123456789abcdef)\n";
  EXPECT_TRUE(told(kSame));
  EXPECT_EQ(only({before}, {after}), Change::slower);  // it is slower
  after.provenance.binary = "fedcba9876543210";
  EXPECT_FALSE(told("the machine changed"));
  before.provenance.binary = after.provenance.binary = "";
  EXPECT_FALSE(told("the machine changed")) << "an unknown program is not the same one";
  before.provenance.binary = after.provenance.binary = "0123456789abcdef";
  before.peer = after.peer = true;  // of another library's code the hash tells nothing
  EXPECT_FALSE(told("the machine changed"));
  before.peer = after.peer = false, after = steady(1000), after.provenance.binary = "0123456789abcdef";
  EXPECT_FALSE(told("the machine changed")) << "nothing changed";
}

TEST(Compare, a_machine_that_was_busy_or_clocked_otherwise_is_named) {
  Record before = steady(1000), after = steady(1200);
  before.threads = after.threads = 2, before.ceiling = after.ceiling = "fmla";
  before.ceiling_gflops = 38, after.ceiling_gflops = 36;
  before.load = after.load = {.seconds = 2, .cpus = 2, .waited = 0.001, .others = 0.01, .cpu_mhz = 2500};
  EXPECT_EQ(compare({before}, {after}, {}).rows.at(0).note, "");
  after.load.waited = 0.4, after.load.others = 0.48, after.load.cpu_mhz = 2100, after.ceiling_gflops = 19;
  const Changes c = compare({before}, {after}, {});
  constexpr const char* kBusy = "other processes took 48 % of 2 CPUs, threads waited for a CPU 40 % of the time";
  EXPECT_EQ(c.rows.at(0).note, join("busy after: ", kBusy));
  ASSERT_GE(c.caveats.size(), 3u);
  EXPECT_EQ(c.caveats[0], join("the machine was busy after: in 1 of 1 record ", kBusy));
  EXPECT_EQ(c.caveats[1], "the machine changed: its CPU clock was 2500 MHz before and 2100 MHz after");
  EXPECT_EQ(c.caveats[2],
            "the machine changed: its measured ceiling (fmla, 2 threads) was 38.0 GFLOP/s before and 19.0 after");
}

TEST(Compare, what_counts_as_a_regression_follows_the_settings) {
  const Changes c = compare({steady(1000), steady(1000, 1024), steady(1000, 2048)},
                            {steady(1100), steady(1010, 1024)}, {});
  EXPECT_EQ(c.regressions({}), 2);
  EXPECT_EQ(c.regressions({.strict = true}), 3);
  EXPECT_EQ(c.regressions({.missing_is_fine = true}), 1);
}

TEST(Compare, intervals_of_runs_are_those_of_rank_tables) {
  // Two-sided 5 %: the largest U is 2 for 5 and 5 runs, 0 for 4 and 4, 2 for 6 and 4.
  const auto interval = [](std::vector<double> before, std::vector<double> after) {
    std::vector<std::vector<double>> all;
    for (const double v : before) all.emplace_back(40, v);
    for (const double v : after) all.emplace_back(40, v);
    const auto middle = all.begin() + std::ptrdiff_t(before.size());
    return ratio_of_runs({all.begin(), middle}, {middle, all.end()}).interval;
  };
  const Interval five = interval({1, 2, 4, 8, 16}, {1, 1, 1, 1, 1});
  EXPECT_NEAR(five.low, 1, 1e-9);    // the third smallest of 25
  EXPECT_NEAR(five.high, 16, 1e-9);
  EXPECT_NEAR(interval({1, 2, 4, 8}, {1, 1, 1, 1.5}).low, 1 / 1.5, 1e-9);  // the smallest of 16
  EXPECT_NEAR(interval({1, 1.1, 1.2, 1.3, 1.4, 1.5}, {1, 1.01, 1.02, 1.03}).low, 1 / 1.01, 1e-9);  // 1/1.03, /1.02, ...
  // Ranks of three and three reach 90 %, so this is Student's interval with four degrees of freedom.
  const Interval three = interval({1, 2, 3}, {1, 1, 1});
  EXPECT_EQ(three.confidence, 0.95);
  EXPECT_NEAR(std::log(three.low), std::log(2.) - 2.776445 * std::sqrt(0.61727 / 4 * 2 / 3), 1e-4);
}

TEST(Compare, samples_that_are_no_times_give_no_verdict) {
  EXPECT_EQ(ratio_of_runs({}, {}).interval.confidence, 0);
  const std::vector<double> zero = {0, 0, 0}, good = {1, 1, 1}, bad = {NAN, NAN, NAN};
  EXPECT_EQ(ratio_of_runs({zero}, {good}).interval.confidence, 0);
  EXPECT_EQ(ratio_of_runs({good, good}, {bad, good}).interval.confidence, 0);
  std::string why;
  EXPECT_EQ(judge({}, {}, 0.01, 0, why), Change::unclear);
}

std::string written(const std::string& name, const std::vector<Record>& records) {
  const std::string path = temporary(name);
  std::ofstream file(path);
  for (const Record& r : records) file << to_json(r) << "\n";
  return path;
}

TEST(CompareCommand, exit_code_1_names_the_regressions_in_every_form) {
  Record odd = steady(1000);
  odd.problem = "a|<b>&\"c\",d:e%\x01", odd.parity.verdict = CheckVerdict::pass;
  Record odd_now = odd;
  odd_now.status = RecordStatus::failed, odd_now.message = "two\nlines";
  const std::string before = written("before.jsonl", {steady(1000, 1024), steady(1000), odd});
  const std::string after = written("after.jsonl", {steady(1000, 1024), steady(1100), odd_now});
  const Ran r = attune_says({"compare", before, after, "--junit", temporary("c.xml"), "--markdown", temporary("c.md"),
                             "--github"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "attune compare: 2 of 3 rows are regressions\n");
  EXPECT_TRUE(has(r.out, "1 SLOWER, 1 SAME, 1 BROKEN")) << r.out;
  EXPECT_TRUE(has(r.out, "::error title=SLOWER forward f32 b1 h8 q512 k512 d64 causal::cpu_forward SLOWER: 1.00 us "
                         "before, 1.10 us after")) << r.out;
  EXPECT_TRUE(has(r.out, "::error title=BROKEN a|<b>&\"c\"%2Cd%3Ae%25")) << r.out;
  EXPECT_TRUE(has(r.out, "failed: two\\u000alines\n")) << r.out;
  const std::string xml = text_of(temporary("c.xml")), markdown = text_of(temporary("c.md"));
  EXPECT_TRUE(has(xml, "tests=\"4\" failures=\"2\" skipped=\"1\"")) << xml;
  EXPECT_TRUE(has(xml, "name=\"a|&lt;b&gt;&amp;&quot;c&quot;,d:e%\\u0001, warm, 1 thread\"")) << xml;
  EXPECT_TRUE(has(markdown, "| BROKEN | `a\\|&lt;b>&\"c\"")) << markdown;
  EXPECT_TRUE(markdown.starts_with("**1 SLOWER, 1 SAME, 1 BROKEN**\n")) << markdown;
}

// 48 rows that all became slower, on a machine whose A/A spread excuses each of them.
std::vector<Record> loud_suite(double factor, double spread) {
  std::vector<Record> all;
  for (int n = 1; n <= 48; ++n)
    all.push_back(steady(1000 * n * factor * (1 + 0.002 * (n % 7 - 3)), 64 * n)), all.back().aa_spread = spread;
  return all;
}

TEST(CompareCommand, a_slow_down_of_all_rows_is_never_green) {
  for (const auto& [factor, spread] : {std::pair(1.2, 0.26), {3.0, 9.0}}) {
    const std::string before = written("a.jsonl", loud_suite(1, spread));
    const std::string after = written("b.jsonl", loud_suite(factor, spread));
    const Ran r = attune_says({"compare", before, after, "--github", "--junit", temporary("c.xml")});
    EXPECT_EQ(r.code, 1) << factor;
    EXPECT_EQ(r.err, "attune compare: no row alone is a regression, but the 48 rows together are\n");
    EXPECT_TRUE(has(r.out, "48 UNCLEAR\nAll 48 rows together: ")) << r.out;
    EXPECT_TRUE(has(r.out, ", SLOWER.\n")) << r.out;
    EXPECT_TRUE(has(r.out, "::error title=SLOWER all rows together::")) << r.out;
    EXPECT_TRUE(has(text_of(temporary("c.xml")), "tests=\"49\" failures=\"1\" skipped=\"48\""));
  }
}

TEST(CompareCommand, three_percent_of_all_rows_are_slower_though_each_is_the_same) {
  const std::string before = written("a.jsonl", loud_suite(1, 0.26));
  const std::string after = written("b.jsonl", loud_suite(1.03, 0.26));
  const Ran r = attune_says({"compare", before, after});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.out, "48 SAME\nAll 48 rows together: 0.971x [0.961, 0.980] times as fast, SLOWER.\n")) << r.out;
}

TEST(CompareCommand, samples_that_are_no_times_are_named_and_not_counted_as_few) {
  std::vector<double> some(10, 1000), none(10, 0.);
  for (size_t n = 0; n < some.size(); ++n) some[n] += double(n);
  std::vector<double> one_negative = some;
  one_negative[3] = -5;
  const std::string before = written("a.jsonl", {record(some)});
  for (const std::vector<double>& samples : {none, one_negative}) {
    Record now = record(samples);
    now.median_ns = 1000;
    const Ran r = attune_says({"compare", before, written("b.jsonl", {now})});
    EXPECT_EQ(r.code, 4) << r.out;
    EXPECT_TRUE(has(r.out, "a sample is not above 0 ns; see attune verify") && !has(r.out, "a verdict needs")) << r.out;
  }
}

TEST(CompareCommand, nothing_told_is_exit_code_4) {
  const std::string before = written("a.jsonl", loud_suite(1, 0.26)), same = written("b.jsonl", loud_suite(1.01, 0.26));
  EXPECT_EQ(attune_says({"compare", before, same}).code, 0);  // together within 5 %
  Record few = record({1000, 1001, 999}), now = record({1500, 1501, 1499});
  const std::string one = written("one.jsonl", {few}), two = written("two.jsonl", {now});
  const Ran r = attune_says({"compare", one, two});
  EXPECT_EQ(r.code, 4);
  EXPECT_EQ(r.err, "attune compare: nothing could be told: the only row is UNCLEAR\n");
  EXPECT_TRUE(has(r.out, "\nUNCLEAR  ") && has(r.out, "  3 samples: a verdict needs 6\n")) << r.out;
  EXPECT_EQ(attune_says({"compare", one, two, "--strict"}).code, 1);
  const Ran save = attune_says({"compare", one, two, "--save", "never"}, {"XDG_CONFIG_HOME=" + temporary("")});
  EXPECT_EQ(save.code, 4);
  EXPECT_FALSE(std::ifstream(temporary("attune/baselines/never.jsonl")).good());
}

TEST(Compare, a_spread_that_no_run_measured_excuses_nothing) {
  const Changes c = compare({steady(1000)}, {steady(1050)}, {});
  EXPECT_EQ(c.rows[0].margin, 0.01);
  Record loud = steady(1000);
  loud.aa_spread = 0.5;
  EXPECT_EQ(compare({loud, steady(1000)}, {steady(1050)}, {}).rows[0].margin, 0.5);  // of those that did
}

TEST(CompareCommand, no_regression_is_exit_code_0_and_json_is_one_document) {
  const std::string file = written("same.jsonl", {steady(1000)});
  const Ran r = attune_says({"compare", file, file, "--json", "--github"});
  EXPECT_EQ(r.code, 0) << r.err;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["regressions"], 0);
  EXPECT_EQ(j["rows"][0]["verdict"], "SAME");
  EXPECT_EQ(j["rows"][0]["times_as_fast"]["value"], 1);
  EXPECT_TRUE(j["rows"][0]["in_cycles"].is_null());
}

TEST(CompareCommand, two_runs_agree_at_enough_rows_or_not) {
  std::vector<Record> first, second;
  for (int n = 1; n <= 20; ++n) first.push_back(steady(1000, n)), second.push_back(steady(n == 7 ? 1100 : 1010, n));
  const std::string a = written("first.jsonl", first), b = written("second.jsonl", second);
  Ran r = attune_says({"compare", a, b, "--agree", "2"});
  EXPECT_EQ(r.code, 0) << r.err;  // one of twenty is SLOWER, but --agree asks for agreement
  EXPECT_EQ(r.out, "  10.00 %  forward f32 b1 h8 q7 k7 d64 causal, cpu_forward, warm, 1 thread: 1.00 us and 1.10 us\n"
                   "19 of 20 rows within 2 %, the farthest 10.00 % apart\n");
  r = attune_says({"compare", a, b, "--agree", "2", "--bar", "96", "--json"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "attune compare: 19 of 20 rows agree, below 96 %\n");
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["agreeing"], 19);
  EXPECT_EQ(j["apart"][0]["problem"], "forward f32 b1 h8 q7 k7 d64 causal");
  const std::string half = written("half.jsonl", {first.begin(), first.begin() + 10});
  EXPECT_EQ(attune_says({"compare", a, half, "--agree", "2"}).code, 1);
  r = attune_says({"compare", a, half, "--agree", "2", "--missing-is-fine"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "10 of 10 rows within 2 %")) << r.out;
  EXPECT_EQ(attune_says({"compare", a, b, "--agree", "2", "--strict"}).code, 2);
  const std::string other = written("other.jsonl", {steady(1000, 999)});
  r = attune_says({"compare", a, other, "--agree", "2", "--missing-is-fine"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "attune compare: the two runs have no row in common\n");
}

TEST(CompareCommand, a_baseline_is_stored_by_name_and_replaced_only_without_a_regression) {
  const std::string slow = written("slow.jsonl", {steady(1100)}), quick = written("quick.jsonl", {steady(1000)});
  const std::string stored = temporary("attune/baselines/release.jsonl");
  Ran r = attune_says({"compare", quick, "--baseline", "release"});
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(has(r.err, "baseline 'release' not found")) << r.err;
  EXPECT_EQ(attune_says({"compare", quick, "--save", "release"}).code, 0);
  EXPECT_EQ(text_of(stored), text_of(quick));
  const auto note = [&] { return attune_says({"compare", quick, "--baseline", "release"}).out; };
  EXPECT_TRUE(has(note(), "Note: the baseline is '" + stored + "'.\n")) << note();
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(stored).parent_path();
  const fs::perms mode = fs::status(folder).permissions();
  fs::permissions(folder, fs::perms::others_write, fs::perm_options::add);
  EXPECT_TRUE(has(note(), "'" + stored + "', whose folder '" + folder.string() + "' everyone may write to.\n"));
  fs::permissions(folder, mode);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(stored.c_str(), 65534, 65534), 0);
    EXPECT_TRUE(has(note(), "'" + stored + "', which belongs to user 65534.\n")) << note();
    ASSERT_EQ(chown(stored.c_str(), 0, 0), 0);
  }
  EXPECT_EQ(attune_says({"compare", slow, "--baseline", "release", "--save", "release"}).code, 1);
  EXPECT_EQ(text_of(stored), text_of(quick));
  EXPECT_EQ(attune_says({"compare", quick, "--baseline", "release", "--save", "release"}).code, 0);
  EXPECT_EQ(attune_says({"compare", slow, "--save", "release"}).code, 0);  // a plain --save, without a comparison
  EXPECT_EQ(text_of(stored), text_of(slow));
  EXPECT_EQ(text_of(stored + ".before"), text_of(quick));
  r = attune_says({"compare", slow, "--baseline", "release", "--markdown", stored});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(text_of(stored), text_of(slow)) << r.err;
  r = attune_says({"compare", quick, "--save", "../release"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "baseline '../release': a name has letters")) << r.err;
  EXPECT_EQ(attune_says({"compare", quick, quick, "--baseline", "release"}).code, 2);
  EXPECT_EQ(attune_says({"compare", written("none.jsonl", {}), "--save", "release"}).code, 1);
}

TEST(CompareCommand, a_baseline_from_a_pipe_is_stored_whole) {
  const std::string quick = written("piped.jsonl", {steady(1000)}), stored = temporary("attune/baselines/piped.jsonl");
  const Ran r = spawn({"sh", "-c", "cat \"$1\" | \"$2\" compare /dev/stdin --save piped", "sh", quick,
                       ATTUNE_BUILD_DIR "/attune"}, {"XDG_CONFIG_HOME=" + temporary("")});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(text_of(stored), text_of(quick));
}

TEST(CompareCommand, a_baseline_of_the_store_is_found_too) {
  const std::string quick = written("quick.jsonl", {steady(1000)}), slow = written("slow.jsonl", {steady(1100)});
  const std::vector<std::string> store = {"ATTUNE_STORE=" + temporary("compare.db")};
  if (const Ran r = attune_says({"store", quick, "--baseline", "main"}, store); r.code) GTEST_SKIP() << r.err;
  EXPECT_EQ(attune_says({"compare", quick, "--baseline", "main"}, store).code, 0);
  const Ran r = attune_says({"compare", slow, "--baseline", "main"}, store);
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "attune compare: 1 of 1 row is a regression\n");
}

TEST(Compare, records_of_several_machines_are_compared_by_machine) {
  const auto on = [](const char* cpu, double ns) {
    Record r = steady(ns);
    r.provenance.cpu = cpu;
    return r;
  };
  const Changes c = compare({on("A", 1000), on("B", 9000)}, {on("A", 2000), on("B", 9000)}, {});
  ASSERT_EQ(c.rows.size(), 2u);
  EXPECT_EQ(c.rows[0].change, Change::slower);
  EXPECT_EQ(c.rows[0].setting, "warm, 1 thread, A");
  EXPECT_EQ(c.rows[1].change, Change::same);
  EXPECT_EQ(only({on("A", 1000)}, {on("B", 1000)}), Change::same);  // one record each: a caveat reports the difference
  const Changes wider = compare({on("A 1", 1000)}, {on("A 1", 1000), on("A", 1000)}, {});
  ASSERT_FALSE(wider.caveats.empty());
  EXPECT_EQ(wider.caveats[0], "the CPU differs: A 1 before, A 1, A after");
}

TEST(Agreement, is_exact_at_its_edges) {
  std::vector<Record> first, second;
  for (int n = 1; n <= 25; ++n) {
    first.push_back(record(std::vector<double>(40, 1000), 64 * n));
    second.push_back(record(std::vector<double>(40, n <= 14 ? 1020 : 1100), 64 * n));
  }
  const Changes c = compare(first, second, {});
  EXPECT_EQ(agreement(c, 0.02, {}).agreeing(), 14);
  const std::string a = written("first.jsonl", first), b = written("second.jsonl", second);
  EXPECT_EQ(attune_says({"compare", a, b, "--agree", "2", "--bar", "56"}).code, 0);
  EXPECT_EQ(attune_says({"compare", a, b, "--agree", "2", "--bar", "57"}).code, 1);
}

TEST(CompareCommand, writes_over_nothing_that_it_reads) {
  const std::string a = written("a.jsonl", {steady(1000)}), b = written("b.jsonl", {steady(1000)}), text = text_of(a);
  for (const auto& [option, file] : {std::pair{"--markdown", a}, {"--junit", b}}) {
    const Ran r = attune_says({"compare", a, b, option, file});
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.err, join("attune compare: ", file, " is an input and would be overwritten\n"));
    EXPECT_EQ(text_of(file), text);
  }
  const Ran twice = attune_says({"compare", a, b, "--markdown", temporary("c"), "--junit", temporary("./c")});
  EXPECT_EQ(twice.code, 2);
  EXPECT_EQ(twice.err, join("attune compare: ", temporary("./c"), " would be written twice\n"));
}

TEST(CompareCommand, sets_without_a_common_row_fail) {
  const Ran r = attune_says({"compare", written("a.jsonl", {steady(1000)}), written("b.jsonl", {steady(1000, 64)}),
                             "--missing-is-fine"});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "nothing was compared")) << r.err;
}

TEST(CompareCommand, files_that_cannot_be_read_or_hold_nothing_are_one_sentence) {
  const std::string good = written("good.jsonl", {steady(1000)}), empty = written("empty.jsonl", {});
  Ran r = attune_says({"compare", temporary("nowhere.jsonl"), good});
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(has(r.err, "nowhere.jsonl' cannot be read")) << r.err;
  r = attune_says({"compare", good, empty});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "empty.jsonl: the file holds no records")) << r.err;
  EXPECT_EQ(attune_says({"compare", good}).code, 2);
  EXPECT_EQ(attune_says({"compare", good, good, "--margin", "-1"}).code, 2);
  EXPECT_EQ(attune_says({"compare", good, good, "--junit", "/nowhere/at/all.xml"}).code, 3);
}

// The example workflow requests rows that exist.
TEST(Compare, the_workflow_of_the_examples_measures_something) {
  std::ifstream file(ATTUNE_SOURCE_DIR "/examples/speed_workflow.yml");
  std::vector<std::string> words = {"bench"};
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(" bench: ");
    if (at == line.npos) continue;
    std::istringstream said(line.substr(at + 8));
    for (std::string word; said >> word;) words.push_back(word);
  }
  ASSERT_GT(words.size(), 1u);
  words.push_back("--dry-run");
  const Ran r = attune_says(words);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "\n8 rows, ")) << r.out;
}

}  // namespace
}  // namespace attune
