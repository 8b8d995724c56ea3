// SPDX-License-Identifier: Apache-2.0
// The verdict over all rows: what it finds and how often it is wrong, in suites of 48 rows. Processes differ as those
// of noise.h do, by 0.36 % in a row: 0.2 % in all rows of a run together, and 0.3 % in each row alone.
#include <gtest/gtest.h>

#include "tests/tool/compare/noise.h"
#include "tests/tool/timing/shapes.h"
#include "tool/compare/changes.h"

namespace attune {
namespace {

constexpr int kRows = 48;
constexpr double kShared = 0.002, kAlone = 0.003;

Record record(int row, std::vector<double> samples, double aa_spread) {
  Record r;
  r.problem = join("forward f32 b1 h8 q", 64 * (row + 1), " k", 64 * (row + 1), " d64 causal");
  r.subject = "cpu_forward";
  r.samples_ns = std::move(samples);
  r.median_ns = median(r.samples_ns);
  r.parity.verdict = CheckVerdict::pass;
  r.aa_spread = aa_spread;
  return r;
}

// The samples of one row in one process.
using Samples48 = std::vector<double> (*)(Draw&, int row, int samples);

std::vector<double> synthetic(Draw& d, int row, int samples) {
  const Shape& shape = kShapes[row % 8 < 5 ? 0 : row % 8 < 7 ? 1 : 2];  // calm, heavy tails, two modes
  return shape.draw(d, samples, 1, row % 3 ? 0.01 : 0.02).b;
}
std::vector<double> measured(Draw& d, int row, int samples) {
  const Noise& noise = row % 2 ? kStandardNoise : kForwardNoise;
  const auto& process = noise[size_t(row / 2) % noise.size()];
  std::vector<double> all;
  for (int n = 0; n < samples; ++n) all.push_back(1e-4 * process[d.below(process.size())]);
  return all;
}

std::vector<Record> suite(Draw& d, Samples48 samples_of, int samples, int runs, double factor, double differ) {
  std::vector<Record> all;
  for (int run = 0; run < runs; ++run) {
    const double shared = factor * std::exp(differ * kShared * d.normal());
    for (int row = 0; row < kRows; ++row) {
      std::vector<double> taken = samples_of(d, row, samples);
      const double scale = 1e5 * (row + 1) * shared * std::exp(differ * kAlone * d.normal());
      for (double& s : taken) s *= scale;
      all.push_back(record(row, std::move(taken), 0.02));
    }
  }
  return all;
}

struct Counted { int slower = 0, faster = 0, same = 0, inside = 0, of = 0; };

// `differ`: how much more processes differ than those of noise.h.
Counted tries(Samples48 samples_of, int samples, int runs, double factor, int count, double differ = 1) {
  Counted c;
  for (Draw d{uint64_t(samples * 100 + runs)}; c.of < count; ++c.of) {
    const auto before = suite(d, samples_of, samples, runs, 1, differ);
    const auto after = suite(d, samples_of, samples, runs, factor, differ);
    const Overall all = compare(before, after, {}).overall;
    c.slower += all.change == Change::slower, c.faster += all.change == Change::faster;
    c.same += all.change == Change::same;
    c.inside += all.ratio.interval.low <= 1 / factor && 1 / factor <= all.ratio.interval.high;
  }
  return c;
}

TEST(Overall, one_program_whose_rows_together_moved_ran_on_a_machine_that_changed) {
  std::vector<Record> before, after;
  for (int row = 0; row < 12; ++row) {
    before.push_back(record(row, std::vector<double>(30, 1000.0), 0.5));
    after.push_back(record(row, std::vector<double>(30, 1100.0), 0.5));  // within the A/A spread of every row
    before.back().provenance.binary = after.back().provenance.binary = "0123456789abcdef";
  }
  const Changes c = compare(before, after, {});
  EXPECT_EQ(c.count(Change::unclear), 12);
  EXPECT_EQ(c.overall.change, Change::slower);
  ASSERT_FALSE(c.caveats.empty());
  EXPECT_TRUE(c.caveats[0].starts_with("the machine changed, not the code: both sides are")) << c.caveats[0];
}

TEST(Overall, a_suite_that_became_3_percent_slower_is_called_in_95_of_100) {
  for (const int samples : {6, 10, 30})
    for (const Samples48 noise : {synthetic, measured}) {
      const Counted c = tries(noise, samples, 1, 1.03, 400);
      EXPECT_GE(c.slower, 380) << samples << (noise == measured ? " measured" : "");
      EXPECT_EQ(c.faster, 0);
    }
}

TEST(Overall, equal_suites_are_called_different_in_at_most_5_of_100) {
  for (const int samples : {6, 10, 30})
    for (const Samples48 noise : {synthetic, measured}) {
      const Counted c = tries(noise, samples, 1, 1, 400);
      EXPECT_LE(c.slower + c.faster, 20) << samples << (noise == measured ? " measured" : "");
      EXPECT_GE(c.inside, 380) << samples;
      EXPECT_GE(c.same, 200) << samples;  // within the A/A spread; guards against a test that never reports anything
    }
}

TEST(Overall, processes_that_differ_twice_as_much_raise_no_more_alarms) {
  const Counted c = tries(measured, 10, 1, 1, 400, 2);
  EXPECT_LE(c.slower + c.faster, 20);
  EXPECT_GE(c.inside, 360);
}

TEST(Overall, five_runs_per_side_find_2_percent) {
  const Counted slow = tries(measured, 10, 5, 1.02, 60), equal = tries(measured, 10, 5, 1, 60);
  EXPECT_GE(slow.slower, 57);
  EXPECT_GE(slow.inside, 54);
  EXPECT_EQ(equal.slower + equal.faster, 0);
  EXPECT_GE(equal.inside, 54);
}

}  // namespace
}  // namespace attune
