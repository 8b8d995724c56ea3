// SPDX-License-Identifier: Apache-2.0
// Honest files have no errors: runs of every kind, old versions, and samples that are alike by chance.
#include "tests/tool/check/honest.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tool/check/parts.h"

namespace attune {
namespace {

using Records = std::vector<Record>;

// Records of one kind whose samples come from `draw(record, sample)`.
Records drawn(int records, int samples, bool gpu, const std::function<double(int, int)>& draw) {
  Records all(static_cast<size_t>(records));
  for (int n = 0; n < records; ++n) {
    all[size_t(n)].device = gpu ? "cuda:0" : "cpu";
    for (int i = 0; i < samples; ++i) all[size_t(n)].samples_ns.push_back(draw(n, i));
  }
  return all;
}

std::string copies(const Records& all) {
  std::vector<Line> lines;
  std::vector<Finding> found;
  for (const Record& r : all) lines.push_back({.number = int(lines.size()) + 1, .record = r});
  audit_copies(lines, found);
  return text(found);
}

// 300 records make 45,000 pairs. Clocks: an event of a GPU (32 ns), a timer of 25 MHz (40 ns), and one of 1 ns.
TEST(Honest, samples_that_are_alike_by_chance_are_no_copies) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise;
  for (const double tick : {32.0, 40.0, 1.0})
    for (const double spread : {0.001, 0.01})
      for (const int samples : {3, 4, 5, 6, 10, 31, 200}) {
        const Records r = drawn(samples > 100 ? 60 : 300, samples, tick == 32, [&](int, int) {
          return std::max(tick, std::round(2e5 * (1 + spread * noise(random)) / tick) * tick);
        });
        EXPECT_EQ(copies(r), "") << tick << " " << spread << " " << samples;
      }
}

// What happens to a machine happens to all its subjects: a ramp of heat, a slow first sample, one that stalled.
TEST(Honest, samples_that_drift_together_are_no_copies) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> noise;
  for (const double ramp : {0.0, 0.05, 0.3})
    for (const int samples : {6, 12, 30}) {
      const Records r = drawn(200, samples, false, [&](int n, int i) {
        const double slow = i == 0 ? 3 : i == samples / 2 ? 1.5 : 1;
        return std::round(1e6 * (1 + n % 7) * slow * (1 + ramp * i / samples + 0.003 * noise(random)));
      });
      EXPECT_EQ(copies(r), "") << ramp << " " << samples;
    }
}

TEST(Honest, records_of_older_versions_have_no_errors) {
  for (const int version : {1, 2}) {
    Records r = honest_run();
    for (Record& x : r) x.version = version, x.provenance.governor = "", x.subject += x.peer ? "" : "_of_old";
    for (Record& x : row_of(r, 3)) x.threads = 64, x.calls = 4;  // no rule then
    for (int row = 0; row < 4; ++row) compare_row(row_of(r, row));
    const std::vector<Finding> found = audited(text_of(r));
    EXPECT_EQ(text(found), join("1 caution unsealed: 12 records have a version before 3, without a seal\n"));
  }
}

TEST(Honest, runs_of_every_kind_have_no_findings) {
  Records r = honest_run();
  const Records gpu = honest_run(true);
  for (const Record& x : gpu) r.push_back(x), r.back().run = "20260131T120000Z-9";
  EXPECT_EQ(text(findings(r)), "") << "two runs";
  r = honest_run();
  for (Record& x : row_of(r, 1)) x.mode = "warm", x.calls = 20, x.floor_ns = 30, x.aa_spread = 0.02;
  compare_row(row_of(r, 1));
  EXPECT_EQ(text(findings(r)), "") << "two modes, each with its floor and its A/A spread";
  r = honest_run();
  for (Record& x : row_of(r, 0)) x.aa_spread.reset();
  compare_row(row_of(r, 0));
  EXPECT_EQ(text(findings(r)), "") << "a row from before the A/A spread was measured";
  r = honest_run();
  Record& none = r[8];
  none.status = RecordStatus::oom, none.message = "no room", none.samples_ns.clear(), none.verdict = none.baseline = "";
  none.median_ns = none.gflops = none.gbs = none.warm_up_s = none.precision = 0, none.ended_by = "";
  none.interval = {}, none.outliers = {};
  EXPECT_EQ(text(findings(r)), "") << "a row that did not fit";
  r = honest_run();
  for (size_t n = 0; n < 31; ++n) r[11].samples_ns[n] *= 1 + 0.01 * double(n);
  compare_row(row_of(r, 3)), r[10].status = RecordStatus::interrupted, r[10].ended_by = "interrupt";
  EXPECT_TRUE(is_clean(findings(r))) << "precise once, and interrupted later\n" << text(findings(r));
  r = honest_run(true);
  for (Record& x : r) x.provenance.clocks = x.peer ? "set by a user, up to 1980 MHz" : "free, up to 1980 MHz";
  EXPECT_EQ(text(findings(r)), "") << "NVML saw two reasons";
}

TEST(Honest, a_file_of_a_newer_version_is_one_sentence) {
  std::string all;
  for (int n = 0; n < 48; ++n) all += "{\"attune_record\":5}\n";
  EXPECT_EQ(text(audited(all)),
            "1 wrong newer-version: record: written by a newer attune (record version 5, this one reads to 4): update; "
            "so are 47 more\n");
}

}  // namespace
}  // namespace attune
