// SPDX-License-Identifier: Apache-2.0
// From records to rules: the threshold rule on curves of every kind, which records count, what the file keeps, and what
// the command prints.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "machine/host.h"
#include "plan/tuned.h"
#include "tests/tool/records.h"
#include "tests/tool/spawn.h"
#include "tool/tune/check.h"
#include "tool/tune/file.h"
#include "tool/tune/watch.h"

namespace attune {
namespace {

// A baseline and one backend with the given lower bounds of the speed-up; NaN: not measured.
Curves curve(std::vector<double> low) {
  Curves c;
  Curve base{"base", {}}, fused{"fused", {}};
  for (size_t n = 0; n < low.size(); ++n) {
    c.lengths.push_back(128 << n);
    base.points.push_back({.measured = true, .low = 1});
    const bool there = !std::isnan(low[n]);
    fused.points.push_back({.measured = there, .low = there ? low[n] : 0, .log_time = there ? -std::log(low[n]) : 0});
  }
  c.backends = {fused, base}, c.baseline = 1;
  c.spread.assign(low.size(), 0.02);
  return c;
}
std::optional<int> from(std::vector<double> low, TuneSettings s = {}) { return threshold(curve(std::move(low)), 0, s); }

TEST(Threshold, of_a_monotone_curve_it_is_the_first_above_the_margin) {
  EXPECT_EQ(from({0.5, 0.9, 1.1, 1.25, 2.0}), 1024);
  EXPECT_EQ(from({0.5, 0.9, 1.2, 1.25, 2.0}), 512);  // exactly the margin is enough
  EXPECT_EQ(from({0.5, 0.9, 1.1, 1.25, 2.0}, {.margin = 0.05}), 512);
}
TEST(Threshold, of_a_curve_that_crosses_twice_only_the_last_crossing_counts) {
  EXPECT_EQ(from({1.5, 1.5, 0.8, 1.3, 1.4}), 1024);
  EXPECT_EQ(from({1.5, 1.5, 1.5, 1.5, 1.1}), std::nullopt);  // the longest is below: never, rather than "up to"
}
TEST(Threshold, never_and_always) {
  EXPECT_EQ(from({0.5, 0.9, 1.0, 1.1, 1.19}), std::nullopt);
  EXPECT_EQ(from({1.3, 1.3, 1.3, 1.3, 1.3}), 128);
  EXPECT_EQ(from({}), std::nullopt);
}
TEST(Threshold, one_length_alone_is_not_enough_where_there_are_others) {
  EXPECT_EQ(from({0.5, 0.9, 1.0, 1.1, 2.0}), std::nullopt);
  EXPECT_EQ(from({0.5, 0.9, 1.0, 1.5, 2.0}), 1024);
  EXPECT_EQ(from({1.5}), 128);
  EXPECT_EQ(from({1.1}), std::nullopt);
}
TEST(Threshold, where_only_the_longest_has_no_room_for_the_baseline_the_fastest_is_chosen) {
  Curves c = curve({0.5, 0.9, INFINITY});
  c.backends.insert(c.backends.begin(), c.backends[0]);
  c.backends[0].backend = "slow", c.baseline = 2;
  c.backends[0].points[2].log_time = 3, c.backends[1].points[2].log_time = 1;
  c.backends[2].points[2] = {};
  EXPECT_EQ(threshold(c, 1, {}), 512);
  EXPECT_EQ(choose(c, {}).at, (std::vector<size_t>{2, 2, 1}));
}
TEST(Threshold, a_length_where_the_backend_is_missing_ends_it) {
  EXPECT_EQ(from({1.5, NAN, 1.5, 1.5, 1.5}), 512);
  EXPECT_EQ(from({1.5, 1.5, 1.5, 1.5, NAN}), std::nullopt);
}
TEST(Threshold, a_length_where_nobody_measured_the_baseline_says_nothing) {
  Curves c = curve({1.5, 1.5, 1.5, 1.5});
  c.backends[0].points[2].low = c.backends[0].points[3].low = NAN;  // too slow to measure
  EXPECT_EQ(threshold(c, 0, {}), 128);
  c.backends[0].points[0].low = c.backends[0].points[1].low = NAN;
  EXPECT_EQ(threshold(c, 0, {}), std::nullopt);
}
TEST(Threshold, what_is_in_use_stays_until_it_loses_clearly) {
  Curves c = curve({1.0, 1.17, 1.18, 1.3, 1.3});
  EXPECT_EQ(threshold(c, 0, {}), 1024);
  c.used = {"base", "fused", "fused", "fused", "fused"};
  EXPECT_EQ(threshold(c, 0, {}), 256);
  c.used = {"base", "base", "fused", "fused", "fused"};
  EXPECT_EQ(threshold(c, 0, {}), 512);
  EXPECT_EQ(threshold(c, 0, {.hysteresis = 0}), 1024);
}

std::string chosen(const Curves& c, const TuneSettings& s = {}) {
  std::string text;
  for (const size_t b : choose(c, s).at) text += join(text.empty() ? "" : " ", c.backends[b].backend);
  return text;
}

TEST(Choose, of_those_that_may_be_used_the_fastest_is) {
  Curves c = curve({1.5, 1.5, 1.5, 1.5});
  c.backends.push_back(c.backends[0]);
  c.backends[2].backend = "other";
  c.backends[2].points[0].log_time -= 0.3, c.backends[2].points[1].log_time -= 0.3;
  EXPECT_EQ(chosen(c), "other other fused fused");
  // Faster than fused, but not by the margin over the baseline.
  for (CurvePoint& p : c.backends[2].points) p.low = 1.1;
  EXPECT_EQ(chosen(c), "fused fused fused fused");
}
TEST(Choose, differences_within_the_spread_or_the_interval_change_nothing) {
  Curves c = curve({1.5, 1.5, 1.5, 1.5});
  c.backends.push_back(c.backends[0]);
  c.backends[2].backend = "other";
  for (CurvePoint& p : c.backends[2].points) p.log_time -= 0.015;
  EXPECT_EQ(chosen(c), "fused fused fused fused");
  for (CurvePoint& p : c.backends[2].points) p.log_time -= 0.03, p.half = 0.1;
  EXPECT_EQ(chosen(c), "fused fused fused fused");
  c.used.assign(4, "other");
  EXPECT_EQ(chosen(c), "other other other other");  // it was in use, and is not slower
  c.used = {"other", "", "", ""};
  EXPECT_EQ(chosen(c), "other fused fused fused");
  for (CurvePoint& p : c.backends[2].points) p.low = 1.0;
  EXPECT_EQ(chosen(c), "fused fused fused fused");  // it was in use, but is not allowed any more
}
TEST(Choose, a_machine_that_differs_from_itself_keeps_nothing_that_is_slower_by_more_than_a_twentieth) {
  Curves c = curve({1.5, 1.5, 1.5, 1.5});
  c.backends.push_back(c.backends[0]);
  c.backends[2].backend = "other";
  c.spread.assign(4, 0.094);
  for (CurvePoint& p : c.backends[2].points) p.log_time -= 0.045;
  EXPECT_EQ(chosen(c), "fused fused fused fused");
  c.backends[2].points[1].log_time -= 0.02;
  EXPECT_EQ(chosen(c), "other other fused fused");
  c.backends[2].points[1].half = 0.07;
  EXPECT_EQ(chosen(c), "fused fused fused fused");  // may be noise
}
TEST(Choose, where_nothing_may_be_used_it_is_the_baseline_or_what_can_run) {
  EXPECT_EQ(chosen(curve({1.0, 1.0})), "base base");
  Curves c = curve({1.0, 1.0});
  c.backends[1].points[1].measured = false;
  EXPECT_EQ(chosen(c), "base fused");
}

// cpu_forward against cpu_standard: slower at 64, faster from 256.
std::vector<Record> crossing() {
  std::vector<Record> all;
  for (const auto& [length, gain] : {std::pair(64, 0.8), {256, 1.5}, {1024, 3.0}}) {
    all.push_back(record("cpu_forward", length, 1e3 * length));
    all.push_back(record("cpu_standard", length, 1e3 * length * gain));
  }
  return all;
}
TunedFile tuned(const std::vector<Record>& records, const std::vector<Rule>& before = {}) {
  const Gathered g = gather(records, {});
  return g.devices.empty() ? TunedFile{} : tune(g.devices[0], before, {});
}
std::string rules(const TunedFile& f) {
  std::string s;
  for (const Rule& r : f.rules()) s += join(s.empty() ? "" : ", ", r.min_len, " ", r.backend);
  return s;
}

TEST(Tune, rules_follow_the_curve_of_the_records) {
  const TunedFile f = tuned(crossing());
  EXPECT_EQ(f.device, "Test CPU");
  EXPECT_EQ(f.measured, "2026-01-31T12:00:00Z commit 0123abc");
  ASSERT_EQ(f.keys.size(), 1u);
  EXPECT_EQ(name(f.keys[0].key), "forward f32 d64 causal heads 1-16");
  EXPECT_EQ(f.keys[0].sentence, "against cpu_standard, margin 20 %: cpu_forward from 256");
  EXPECT_EQ(rules(f), "64 cpu_standard, 256 cpu_forward");
  EXPECT_EQ(f.keys[0].rows.at(2),
            "forward f32 b1 h8 q256 k256 d64 causal\twarm\tcpu_forward\t256 us\t1.50x [1.50, 1.50]");
}
TEST(Tune, a_noisy_row_counts_by_the_lower_bound_and_not_by_its_median) {
  std::vector<Record> all;
  for (const int length : {256, 1024}) {
    all.push_back(record("cpu_forward", length, 1e3 * length));
    all.push_back(record("cpu_standard", length, 1.25e3 * length));
  }
  EXPECT_EQ(tuned(all).keys.at(0).sentence, "against cpu_standard, margin 20 %: cpu_forward from 256");
  for (Record& r : all)
    for (size_t n = 0; n < r.samples_ns.size(); ++n) r.samples_ns[n] = r.median_ns * (1 + 0.1 * (double(n % 5) - 2));
  const Ratio gain = median_ratio(all[1].samples_ns, all[0].samples_ns);
  ASSERT_NEAR(gain.value, 1.25, 1e-9);
  ASSERT_LT(gain.interval.low, 1.2);
  EXPECT_EQ(tuned(all).keys.at(0).sentence, "against cpu_standard, margin 20 %: cpu_forward never");
}
TEST(Tune, a_key_where_the_named_baseline_was_not_measured_says_so_and_has_no_rules) {
  auto all = crossing();
  for (Record r : crossing()) {
    r.problem.replace(r.problem.find("causal"), 6, "full");
    if (r.subject == "cpu_standard") r.subject = "cpu_selected";
    all.push_back(r);
  }
  const Gathered g = gather(all, {.against = "cpu_standard"});
  const TunedFile f = tune(g.devices.at(0), {}, {});
  ASSERT_EQ(f.keys.size(), 2u);
  EXPECT_EQ(f.keys[0].sentence, "cpu_standard was not measured: no baseline for the others");
  EXPECT_TRUE(f.keys[0].rules.empty());
  EXPECT_TRUE(f.keys[0].rows.at(0).ends_with("\tcpu_standard was not measured")) << f.keys[0].rows[0];
  EXPECT_EQ(f.keys[1].sentence, "against cpu_standard, margin 20 %: cpu_forward from 256");
  EXPECT_EQ(rules(f), "64 cpu_standard, 256 cpu_forward");
}
TEST(Tune, every_row_of_a_bucket_must_agree_in_any_order) {
  std::vector<Record> all = {record("cpu_forward", 256, 1e3, 4), record("cpu_standard", 256, 1.1e3, 4)};
  for (const Record& r : crossing()) all.push_back(r);
  EXPECT_EQ(rules(tuned(all)), "64 cpu_standard");
  all[1] = record("cpu_standard", 256, 3e3, 4), all[0].status = RecordStatus::failed;
  EXPECT_EQ(rules(tuned(all)), "64 cpu_standard");
  all = crossing();
  all.push_back(record("cpu_forward", 256, 1e3, 4)), all.push_back(record("cpu_standard", 256, 1.1e3, 4));
  EXPECT_EQ(rules(tuned(all)), "64 cpu_standard");
  all = crossing();  // different heads are a different bucket
  all.push_back(record("cpu_forward", 256, 1e3, 64)), all.push_back(record("cpu_standard", 256, 1.1e3, 64));
  EXPECT_EQ(rules(tuned(all)), "64 cpu_standard, 256 cpu_forward, 256 cpu_standard");
}
TEST(Tune, what_is_wrong_unchecked_or_broken_is_never_chosen) {
  for (const auto& spoil : {+[](Record& r) { r.parity.verdict = CheckVerdict::fail; },
                            +[](Record& r) { r.parity.verdict = CheckVerdict::none; },
                            +[](Record& r) { r.status = RecordStatus::failed; },
                            +[](Record& r) { r.status = RecordStatus::refused; },
                            +[](Record& r) { r.samples_ns.clear(); }}) {
    auto all = crossing();
    spoil(all[4]);  // cpu_forward at 1024
    EXPECT_EQ(rules(tuned(all)), "64 cpu_standard");
  }
}
TEST(Tune, a_baseline_that_does_not_fit_is_beaten_and_one_that_was_wrong_says_nothing) {
  auto all = crossing();
  all[5].status = RecordStatus::oom, all[5].samples_ns.clear();
  EXPECT_EQ(rules(tuned(all)), "64 cpu_standard, 256 cpu_forward");
  all = crossing();
  const auto end = [&](RecordStatus status, CheckVerdict verdict) {
    for (const size_t n : {1u, 3u, 5u}) all[n].status = status, all[n].parity.verdict = verdict;
  };
  end(RecordStatus::failed, CheckVerdict::fail);
  EXPECT_EQ(rules(tuned(all)), "64 cpu_forward");  // no backend is faster: the order decides among correct ones
  EXPECT_EQ(tuned(all).keys.at(0).sentence, "against cpu_standard, margin 20 %: cpu_forward never");
  end(RecordStatus::refused, CheckVerdict::pass);
  EXPECT_EQ(tuned(all).keys.at(0).sentence, "against cpu_standard, margin 20 %: cpu_forward never");
  end(RecordStatus::oom, CheckVerdict::none);
  EXPECT_EQ(tuned(all).keys.at(0).sentence, "against cpu_standard, margin 20 %: cpu_forward from 64");
}
TEST(Tune, what_refuses_a_problem_is_no_candidate_and_what_never_ran_makes_no_rule) {
  auto all = crossing();
  for (const int n : {1, 3, 5}) all[size_t(n)].status = RecordStatus::unsupported;
  TunedFile f = tuned(all);
  EXPECT_EQ(f.keys.at(0).sentence, "only cpu_forward was measured: nothing to choose from");
  EXPECT_TRUE(f.rules().empty());
  for (Record& r : all) r.status = RecordStatus::failed;
  EXPECT_TRUE(tuned(all).rules().empty());
}
TEST(Tune, of_one_backend_there_is_no_rule) {
  const TunedFile f = tuned({record("cpu_forward", 64, 1e3)});
  EXPECT_TRUE(f.rules().empty());
  EXPECT_EQ(f.keys.at(0).sentence, "only cpu_forward was measured: nothing to choose from");
}
TEST(Tune, the_last_record_of_a_row_counts_and_most_threads_and_the_headline_timing) {
  auto all = crossing();
  all.push_back(record("cpu_forward", 64, 1e3));  // again, and now faster
  EXPECT_EQ(rules(tuned(all)), "64 cpu_forward");
  for (const auto& other : {+[](Record& r) { r.threads = 1; }, +[](Record& r) { r.mode = "cold"; }}) {
    all = crossing();
    Record r = record("cpu_forward", 64, 1e3);
    other(r);
    all.push_back(r);
    EXPECT_EQ(rules(tuned(all)), "64 cpu_standard, 256 cpu_forward");
    EXPECT_EQ(gather(all, {}).left_out.at("timed another way, or on fewer threads"), 1);
  }
}
TEST(Tune, what_no_rule_is_for_is_left_out_and_counted) {
  auto all = crossing();
  for (const char* line : {"forward f32 b1 h8 q64 k64 d64 causal softcap",
                           "forward f32 b1 h8 q64 k64 d64 causal paged16",
                           "forward f32 b1 h8 q64 k64 d64 causal blocks64x64x1", "nonsense"}) {
    all.push_back(record("cpu_forward", 64, 1));
    all.back().problem = line;
  }
  all.push_back(record("torch:sdpa", 64, 1)), all.push_back(record("reference", 64, 1));
  const Gathered g = gather(all, {});
  EXPECT_EQ(rules(tuned(all)), "64 cpu_standard, 256 cpu_forward");
  int n = 0;
  for (const auto& [why, count] : g.left_out) n += count;
  EXPECT_EQ(n, 6);
}
TEST(Tune, devices_have_files_of_their_own) {
  auto all = crossing();
  for (Record r : crossing()) r.threads = 0, r.mode = "cold", r.provenance.gpu = "Test GPU", all.push_back(r);
  const Gathered g = gather(all, {});
  ASSERT_EQ(g.devices.size(), 2u);
  EXPECT_EQ(g.devices[0].device, "Test CPU");
  EXPECT_EQ(g.devices[1].device, "Test GPU");
}
TEST(Tune, decode_steps_are_another_key) {
  auto all = crossing();
  for (Record r : crossing()) {
    r.problem.replace(r.problem.find(" q"), r.problem.find(" k") - r.problem.find(" q"), " q1");
    all.push_back(r);
  }
  const TunedFile f = tuned(all);
  ASSERT_EQ(f.keys.size(), 2u);
  EXPECT_TRUE(has(to_text(f), "\tfew 256\tcpu_forward\n"));
  EXPECT_TRUE(has(to_text(f), "\tlen 256\tcpu_forward\n"));
}

TEST(TuneFile, is_what_the_planner_reads_and_comes_back_whole) {
  const TunedFile f = tuned(crossing());
  Tuned read;
  ASSERT_TRUE(read_tuned(to_text(f), "x.tsv", read).ok());
  EXPECT_EQ(read.rules.size(), 2u);
  TunedFile again;
  ASSERT_TRUE(from_text(to_text(f), "x.tsv", again).ok());
  EXPECT_EQ(to_text(again), to_text(f));
  Problem p;
  ASSERT_TRUE(parse("forward f32 b1 h8 q300 k300 d64 causal", p).ok());
  ASSERT_TRUE(find(again, p));
  EXPECT_EQ(find(again, p)->rows.size(), 6u);
  ASSERT_TRUE(parse("forward f32 b1 h8 q300 k300 d64 full", p).ok());
  EXPECT_EQ(find(again, p), nullptr);
}
TEST(TuneFile, keeps_what_was_not_measured_now_and_drops_what_overlaps) {
  TunedFile before = tuned(crossing()), now = before;
  before.keys[0].key.mask = MaskKind::full;
  for (Rule& r : before.keys[0].rules) r.mask = MaskKind::full;
  keep(before, now);
  EXPECT_EQ(now.keys.size(), 2u);
  TunedFile wide = tuned(crossing());
  wide.keys[0].key.max_heads = INT64_MAX;
  now = tuned(crossing());
  keep(wide, now);
  EXPECT_EQ(now.keys.size(), 1u);
  wide.keys[0].key.min_heads = 17;
  keep(wide, now);
  EXPECT_EQ(now.keys.size(), 2u);
}
TEST(TuneFile, rules_stay_where_new_records_decide_nothing) {
  const TunedFile before = tuned(crossing());
  auto failed = crossing();
  for (Record& r : failed) r.status = RecordStatus::failed;
  for (const auto& records : {std::vector{record("cpu_forward", 256, 1e3)}, failed}) {
    TunedFile now = tuned(records);
    keep(before, now);
    EXPECT_EQ(rules(now), rules(before));
    EXPECT_TRUE(now.keys.at(0).sentence.ends_with("; the existing rules stay")) << now.keys[0].sentence;
    TunedFile again, read;
    ASSERT_TRUE(from_text(to_text(now), "x.tsv", read).ok());
    again = tuned(records, read.rules());
    keep(read, again);
    EXPECT_EQ(to_text(again), to_text(now));
  }
}
TEST(TuneFile, windows_and_compressed_keys_have_thresholds_of_their_own) {
  std::vector<Record> all;
  for (Record r : crossing()) {
    const int length = has(r.problem, "k1024") ? 1024 : has(r.problem, "k256") ? 256 : 64;
    r.problem = join("forward f32 b1 h8 q2048 k2048 d64 window", length - 1, ",0");
    all.push_back(r);
    r.problem = join("forward f32 b1 h8 q2048 k", length, " d64 causal/16+15");
    r.samples_ns.assign(30, 1000);
    all.push_back(r);
  }
  const Gathered g = gather(all, {.by_window = true});
  const TunedFile file = tune(g.devices.at(0), {}, {});
  for (const TunedKey& k : file.keys)
    EXPECT_EQ(k.from, k.key.apart ? std::optional<int>() : std::optional<int>(256)) << name(k.key);
  EXPECT_EQ(rules(file).find("cmp"), std::string::npos);
}

TEST(TuneCheck, a_choice_is_right_where_it_is_the_fastest_or_within_the_spread) {
  const std::vector<Rule> made = tuned(crossing()).rules();
  std::vector<Record> other = {record("cpu_forward", 512, 1000), record("cpu_standard", 512, 2000),
                               record("cpu_forward", 128, 1000), record("cpu_standard", 128, 1005),
                               record("cpu_forward", 100, 1000), record("cpu_standard", 100, 1100),
                               record("cpu_forward", 32, 1000), record("cpu_standard", 32, 900)};
  const auto checked = check_choices(other, made, "Test CPU", {});
  ASSERT_EQ(checked.size(), 4u);
  int right = 0;
  for (const CheckedChoice& c : checked) {
    right += c.right();
    const bool standard = has(c.problem, "k100 ") || has(c.problem, "k128 ");  // k32: shorter than any rule
    EXPECT_EQ(c.chosen, standard ? "cpu_standard" : "cpu_forward") << c.problem;
  }
  EXPECT_EQ(right, 2);
  EXPECT_TRUE(check_choices(other, made, "Other CPU", {}).empty());
}

// Backends are timed by name, but the planner may refuse a backend named by a rule; then the planner decides.
TEST(TuneCheck, of_a_device_that_is_known_the_choice_is_the_planners) {
  std::vector<Record> other = {record("cpu_forward", 512, 1000), record("cpu_backward", 512, 900)};
  std::vector<Rule> rules = tuned(crossing()).rules();
  for (Rule& r : rules) r.backend = "cpu_backward";  // does not support forward
  EXPECT_EQ(check_choices(other, rules, "Test CPU", {}).at(0).chosen, "cpu_backward");
  for (Record& r : other) r.provenance.cpu = this_cpu().name;
  const auto checked = check_choices(other, rules, this_cpu().name, {});
  ASSERT_EQ(checked.size(), 1u);
  EXPECT_EQ(checked[0].chosen, "cpu_forward");
  EXPECT_FALSE(checked[0].by_rule || checked[0].right());
}
TEST(TuneCheck, a_machine_that_differs_from_itself_says_not_what_is_as_fast) {
  EXPECT_TRUE((CheckedChoice{.slower = 0.04, .spread = 0.9}.right()));
  EXPECT_FALSE((CheckedChoice{.slower = 0.06, .spread = 0.9}.right()));
  EXPECT_FALSE((CheckedChoice{.slower = 0.04, .spread = 0.03}.right()));
}
TEST(TuneCheck, devices_are_known_by_their_names) {
  Device d;
  EXPECT_TRUE(device_called(this_cpu().name, d));
  EXPECT_EQ(d.kind, DeviceKind::cpu);
  EXPECT_TRUE(device_called("NVIDIA H200", d));
  EXPECT_EQ(d.name, "NVIDIA H200");
  for (const char* name : {"Test CPU", "H200", "cpu", ""}) EXPECT_FALSE(device_called(name, d)) << name;
}

std::string written(const std::string& name, const std::vector<Record>& records) {
  const std::string path = temporary(name);
  std::ofstream file(path);
  for (const Record& r : records) file << to_json(r) << "\n";
  return path;
}
std::vector<Record> of_this_cpu(std::vector<Record> all) {
  for (Record& r : all) r.provenance.cpu = this_cpu().name;
  return all;
}

TEST(TuneCommand, the_file_decides_the_plan_and_why_shows_its_rows) {
  const std::string records = written("t.jsonl", of_this_cpu(crossing())), folder = temporary("tuned");
  Ran r = attune_says({"tune", records, "--out", folder});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "cpu_forward from 256"));
  const std::string line = "forward f32 b1 h8 q100 k100 d64 causal", path = folder + "/" +
      file_word(Device{.name = this_cpu().name}) + ".tsv", tuned = "ATTUNE_TUNED=" + folder;
  r = attune_says({"why", line}, {tuned});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "\nforward f32 b1 h8 d64 causal\n")) << r.out;
  EXPECT_TRUE(has(r.out, "\nq1024 k1024  warm")) << r.out;
  const auto j = nlohmann::json::parse(attune_says({"why", line, "--json"}, {tuned}).out);
  EXPECT_EQ(j["rows"].size(), 6u);
  EXPECT_TRUE(j["rule"].get<std::string>().ends_with("len 64\tcpu_standard"));
  EXPECT_TRUE(j["why"].get<std::string>().starts_with(path) || has(j["why"], "first in the list")) << "without a BLAS";

  const std::string text = text_of(path);
  r = attune_says({"tune", records, "--out", folder});
  EXPECT_TRUE(has(r.out, "nothing changes in ")) << r.out;
  EXPECT_EQ(text_of(path), text);
  r = attune_says({"tune", records, "--out", folder, "--margin", "60", "--dry-run"});
  EXPECT_TRUE(has(r.out, "would write")) << r.out;
  EXPECT_EQ(text_of(path), text);
  r = attune_says({"tune", records, "--out", folder, "--margin", "60"});  // only 1024 exceeds it
  EXPECT_FALSE(has(text_of(path), "\tcpu_forward\n")) << text_of(path);
  EXPECT_EQ(text_of(path + ".before"), text);
}
TEST(TuneCommand, a_dry_run_writes_no_file_at_all) {
  const std::string records = written("dry.jsonl", crossing());
  const std::string out = temporary("dry.tsv"), yaml = temporary("dry.yaml"), key = "limits.from=causal";
  const Ran r = attune_says({"tune", records, "--out", out, "--yaml", yaml, "--key", key, "--dry-run"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "would write " + out) && has(r.out, "would write " + yaml)) << r.out;
  EXPECT_FALSE(std::filesystem::exists(out) || std::filesystem::exists(yaml));
  EXPECT_TRUE(has(attune_says({"tune", records, "--out", out, "--yaml", yaml, "--key", key}).out, "wrote " + yaml));
  EXPECT_TRUE(has(text_of(yaml), "-1: never\nlimits:\n  from: 256\n")) << text_of(yaml);
  EXPECT_TRUE(has(attune_says({"tune", records, "--out", out, "--yaml", yaml, "--key", key}).out,
                  "nothing changes in " + yaml));
}
TEST(TuneCommand, says_where_the_planner_reads_another_file) {
  const std::string records = written("where.jsonl", crossing()), other = temporary("where.tsv");
  const std::string word = file_word(Device{.name = "Test CPU"}), home = temporary("/attune/" + word + ".tsv");
  Ran r = attune_says({"tune", records, "--out", other});
  EXPECT_TRUE(has(r.out, "here the planner reads no file for this device; set ATTUNE_TUNED")) << r.out;
  r = attune_says({"tune", records});
  EXPECT_TRUE(has(r.out, "wrote " + home)) << r.out;
  EXPECT_FALSE(has(r.out, "here the planner")) << r.out;
  r = attune_says({"tune", records, "--out", other});
  EXPECT_TRUE(has(r.out, "here the planner reads " + home + ", not that file")) << r.out;
  EXPECT_FALSE(has(attune_says({"tune", records, "--out", other}, {"ATTUNE_TUNED=" + other}).out, "here the planner"));
  // A file of the current folder is read only by name.
  const std::string folder = temporary("project");
  std::filesystem::create_directories(folder + "/.attune");
  std::filesystem::copy_file(home, folder + "/.attune/" + word + ".tsv");
  const std::vector<std::string> there = {"sh", "-c", "cd \"$1\" && exec \"$2\" tune \"$3\"", "sh", folder,
                                          ATTUNE_BUILD_DIR "/attune", records};
  const std::string config = "XDG_CONFIG_HOME=" + temporary("");
  EXPECT_FALSE(has(spawn(there, {config}).out, "here the planner"));
  EXPECT_TRUE(has(spawn(there, {config, "ATTUNE_TUNED=.attune"}).out, " .attune/" + word + ".tsv\n"));
  const auto j = nlohmann::json::parse(attune_says({"tune", records, "--out", other, "--json"}).out);
  EXPECT_EQ(j["devices"][0]["planner_reads"], home);
}
TEST(TuneCommand, a_project_has_a_file_of_its_own_that_the_planner_reads_by_name) {
  const std::string records = written("own.jsonl", of_this_cpu(crossing())), folder = temporary("of_a_project");
  const std::string file = ".attune/" + file_word(Device{.name = this_cpu().name}) + ".tsv";
  std::filesystem::create_directories(folder);
  const auto there = [&](const std::string& words, const std::string& tuned = "") {
    return spawn({"sh", "-c", "cd \"$1\" && exec \"$2\" " + words, "sh", folder, ATTUNE_BUILD_DIR "/attune", records},
                 {"XDG_CONFIG_HOME=" + temporary("of_nobody"), "ATTUNE_TUNED=" + tuned});
  };
  Ran r = there("tune \"$3\" --project");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "wrote " + file) && has(r.out, "reads no file for this device; set ATTUNE_TUNED")) << r.out;
  EXPECT_TRUE(has(text_of(folder + "/" + file), "cpu_forward"));
  r = there("why 'forward f32 b1 h8 q1024 k1024 d64 causal' --json");
  EXPECT_EQ(nlohmann::json::parse(r.out)["rows"].size(), 0u) << r.out << r.err;
  r = there("why 'forward f32 b1 h8 q1024 k1024 d64 causal' --json", ".attune");
  EXPECT_EQ(nlohmann::json::parse(r.out)["rows"].size(), 6u) << r.out << r.err;
  EXPECT_EQ(there("tune \"$3\" --project --out x.tsv").code, 2);
}
TEST(TuneCommand, a_file_whose_name_is_no_text_leaves_json_one_document) {
  const std::string records = written("byte.jsonl", of_this_cpu(crossing())), path = temporary("byte\xff.tsv");
  ASSERT_EQ(attune_says({"tune", records, "--out", path}).code, 0);
  const std::string line = "forward f32 b1 h8 q1024 k1024 d64 causal";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"doctor", "--no-measure", "--json"},
                                                {"plan", line, "--json"}, {"why", line, "--json"}}) {
    const Ran r = attune_says(words, {"ATTUNE_TUNED=" + path});
    EXPECT_TRUE(nlohmann::json::accept(r.out)) << words[0] << ": " << r.out << r.err;
  }
}
TEST(TuneCommand, a_file_that_cannot_be_read_is_never_overwritten) {
  const std::string records = written("u.jsonl", crossing()), path = temporary("mine.tsv");
  std::ofstream(path) << "attune-tuned 1\nby hand\n";
  Ran r = attune_says({"tune", records, "--out", path});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "mine.tsv:2: ")) << r.err;
  EXPECT_EQ(text_of(path), "attune-tuned 1\nby hand\n");
  std::ofstream(path) << "attune-tuned 1\ndevice\tOther\nmeasured\tx\n";
  EXPECT_TRUE(has(attune_says({"tune", records, "--out", path}).err, ": measured on 'Other'"));
  EXPECT_EQ(attune_says({"tune", records, "--out", path, "--fresh"}).code, 0);
  EXPECT_TRUE(has(text_of(path), "device\tTest CPU"));
}
TEST(TuneCommand, a_check_below_the_bar_fails) {
  const std::string records = written("v.jsonl", crossing()), out = temporary("v.tsv");
  const std::string good = written("good.jsonl", {record("cpu_forward", 512, 1000), record("cpu_standard", 512, 2000)});
  const std::string bad = written("bad.jsonl", {record("cpu_forward", 512, 2000), record("cpu_standard", 512, 1000)});
  const std::string none = written("none.jsonl", {record("cpu_forward", 512, 2000)});
  EXPECT_EQ(attune_says({"tune", records, "--out", out, "--check", good}).code, 0);
  EXPECT_EQ(attune_says({"tune", records, "--out", out, "--check", bad, "--bar", "0"}).code, 0);
  Ran r = attune_says({"tune", records, "--out", out, "--check", bad});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "attune tune: the choice is right at 0 of 1 row, below 98 %\n");
  EXPECT_TRUE(has(attune_says({"tune", records, "--out", out, "--check", none}).err, "no row with two backends"));
}
TEST(TuneCommand, rules_that_are_slower_than_their_rows_say_so) {
  std::vector<Record> all;
  for (const int length : {64, 128, 256, 512}) {
    all.push_back(record("cpu_forward", length, 1e3 * length));
    all.push_back(record("cpu_standard", length, 2e3 * length));
  }
  const std::string good = attune_says({"tune", written("n.jsonl", all), "--out", temporary("n.tsv")}).out;
  EXPECT_FALSE(has(good, "measure longer")) << good;
  for (size_t n = 0; n < all[6].samples_ns.size(); ++n) all[6].samples_ns[n] *= n % 3 == 0 ? 0.5 : n % 3 == 1 ? 1 : 3;
  const Ran r = attune_says({"tune", written("n.jsonl", all), "--out", temporary("n.tsv"), "--fresh"});
  EXPECT_TRUE(has(r.out, "  warning: at 4 of 4 rows behind the rules the choice is more than 20 % slower than the "
                         "fastest: their intervals are wide, measure longer\n")) << r.out;
}
TEST(TuneCommand, mistakes_are_one_sentence) {
  const std::string records = written("w.jsonl", crossing());
  EXPECT_EQ(attune_says({"tune"}).code, 2);
  EXPECT_EQ(attune_says({"tune", records, "--buckets", "5,5"}).code, 2);
  EXPECT_EQ(attune_says({"tune", records, "--timing", "tepid"}).code, 2);
  EXPECT_EQ(attune_says({"tune", records, records, "--watch", "x"}).code, 2);
  Ran r = attune_says({"tune", records, "--against", "cpu_standrad"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(r.err.starts_with("attune tune: --against: 'cpu_standrad' is not one of ")) << r.err;
  r = attune_says({"tune", records, "--against", "reference"});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.err, "attune tune: --against: reference runs only by name, so its records do not count\n");
  r = attune_says({"tune", written("p.jsonl", {record("torch:sdpa", 64, 1)})});
  EXPECT_EQ(r.err, "attune tune: no record can be used: 1 record: torch:sdpa is not a backend of this build\n");
  r = attune_says({"tune", written("live.jsonl", {}), "--watch", "/nowhere/calls.log"});
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(has(r.err, "/nowhere/calls.log cannot be read")) << r.err;
  EXPECT_EQ(attune_says({"tune", written("live.jsonl", {}), "--watch", temporary(""), "--once"}).code, 3);
  EXPECT_EQ(attune_says({"tune", records, "--out", "/proc/no/such/folder/t.tsv"}).code, 3);
  EXPECT_EQ(attune_says({"why", "nonsense"}).code, 2);
}

TEST(TuneWatch, a_problem_that_another_device_has_measured_is_measured_here) {
  Record r = record("sm80_forward", 32, 1e3, 1);
  r.threads = 0, r.mode = "cold", r.provenance.gpu = "Test GPU", r.provenance.cpu = this_cpu().name;
  const std::string log = temporary("two.log"), records = written("two_devices.jsonl", {r});
  std::ofstream(log) << "attune: " << r.problem << " -> cpu_forward on " << this_cpu().name << ": first in the list\n";
  const Ran ran = attune_says({"tune", records, "--watch", log, "--once", "--out", temporary("two_devices")});
  std::vector<Record> all;
  ASSERT_TRUE(read_records(records, all).ok()) << ran.err;
  EXPECT_GT(all.size(), 1u) << ran.out << ran.err;
}

}  // namespace
}  // namespace attune
