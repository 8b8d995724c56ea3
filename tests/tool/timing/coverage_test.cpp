// SPDX-License-Identifier: Apache-2.0
// Whether verdicts mean what they say: intervals and verdicts over 10,000 synthetic pairs of every shape and number of
// samples, with true ratios on either side of what a verdict claims.
#include <gtest/gtest.h>

#include "tests/tool/timing/shapes.h"
#include "tool/timing/statistics.h"

namespace attune {
namespace {

constexpr int kPairs = 10000;
constexpr double kMargin = 0.01;
constexpr double kNoise[] = {0.002, 0.01, 0.03};
// Equal, hardly different, at the edges of what counts, and clearly different.
constexpr double kRatios[] = {1, 1.003, 0.9975, 1.0099, 1.0101, 1 / 1.0099, 1 / 1.0101, 1.02, 0.97, 1.1};

bool is_wrong(Speed v, double ratio) {
  if (v == Speed::faster) return ratio < 1 + kMargin;
  if (v == Speed::slower) return ratio > 1 / (1 + kMargin);
  return v == Speed::same && (ratio > 1 + kMargin || ratio < 1 / (1 + kMargin));
}

struct Seen { int wrong = 0, missed = 0, decided = 0, of = 0; };

Seen seen_at(const Shape& shape, int samples) {
  Seen seen;
  Draw draw{uint64_t(samples)};
  for (; seen.of < kPairs; ++seen.of) {
    const double ratio = kRatios[size_t(seen.of) % std::size(kRatios)];
    const double noise = kNoise[size_t(seen.of) / std::size(kRatios) % std::size(kNoise)];
    const SamplePair p = shape.draw(draw, samples, ratio, noise);
    const Ratio r = median_ratio(p.a, p.b);
    const Speed v = verdict(r, kMargin);
    seen.wrong += is_wrong(v, ratio);
    seen.missed += !(r.interval.low <= ratio && ratio <= r.interval.high);
    seen.decided += v != Speed::unclear;
  }
  return seen;
}

class Coverage : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Coverage, testing::ValuesIn(kShapes), [](const auto& i) {
  std::string name = i.param.name;
  for (char& c : name) if (c == ' ') c = '_';
  return name;
});

TEST_P(Coverage, of_10000_pairs_at_most_5_percent_of_verdicts_are_wrong) {
  for (const int samples : {6, 10, 30}) {
    const Seen seen = seen_at(GetParam(), samples);
    EXPECT_LE(seen.wrong, kPairs / 20) << samples;
    EXPECT_LE(seen.missed, kPairs / 20) << samples;
    RecordProperty(std::to_string(samples).c_str(), seen.wrong);
  }
}

TEST(CoverageOf, calm_samples_decide_something_and_more_of_them_more) {
  const int six = seen_at(kShapes[0], 6).decided, thirty = seen_at(kShapes[0], 30).decided;
  EXPECT_GT(six, kPairs / 4);
  EXPECT_GT(thirty, six + kPairs / 20);
}

TEST(CoverageOf, fewer_than_six_samples_is_no_verdict) {
  Draw draw{1};
  for (int samples = 1; samples <= 8; ++samples) {
    const SamplePair p = kShapes[0].draw(draw, samples, 2, 0.002);
    EXPECT_EQ(verdict(median_ratio(p.a, p.b), kMargin), samples < kFewestSamples ? Speed::unclear : Speed::faster);
    EXPECT_EQ(median_ratio(p.a, p.b).interval.is_sure(), samples >= kFewestSamples);
  }
}

}  // namespace
}  // namespace attune
