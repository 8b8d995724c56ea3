// SPDX-License-Identifier: Apache-2.0
// The algebra of online softmax: a row fed in tiles and merged with other parts in any order equals one softmax over
// everything.
#include "core/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace attune;

namespace {

constexpr float kInf = INFINITY;

struct Part { float out = 0.f, lse = -kInf; };
Part operator+(Part a, Part b) {
  const Share s = merge(a.lse, b.lse);
  return {(s.a ? a.out * s.a : 0.f) + (s.b ? b.out * s.b : 0.f), s.lse};
}

// Attends to values with natural logits, in tiles of `tile`; base 2 internally.
Part attend(const std::vector<float>& logit, const std::vector<float>& value, size_t tile) {
  SoftmaxRow row;
  float out = 0.f;
  for (size_t first = 0; first < logit.size(); first += tile) {
    const size_t last = std::min(first + tile, logit.size());
    float top = -kInf;
    for (size_t n = first; n < last; ++n) top = fmaxf(top, logit[n] * kLog2e);
    out *= row.admit(top);
    for (size_t n = first; n < last; ++n) {
      const float w = row.weight(logit[n] * kLog2e);
      row.sum += w, out += w * value[n];
    }
  }
  return {out * row.normaliser(), row.lse()};
}

std::vector<float> draw(size_t count, unsigned seed, float width) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.f, width);
  std::vector<float> all(count);
  for (float& x : all) x = normal(random);
  return all;
}

void expect_same(Part a, Part b) {
  EXPECT_NEAR(a.out, b.out, 2e-6);
  EXPECT_NEAR(a.lse, b.lse, 1e-6 * (1 + std::fabs(b.lse)));
}

TEST(SoftmaxRow, tiles_of_any_size_give_the_softmax_of_the_whole) {
  for (const float width : {0.1f, 1.f, 30.f}) {
    const std::vector<float> logit = draw(37, 1, width), value = draw(37, 2, 1.f);
    double top = -kInf, sum = 0, out = 0;
    for (const float x : logit) top = std::max(top, double(x));
    for (size_t n = 0; n < logit.size(); ++n) {
      const double weight = std::exp(logit[n] - top);
      sum += weight, out += weight * value[n];
    }
    for (const size_t tile : {1, 2, 5, 37, 64})
      expect_same(attend(logit, value, tile), {float(out / sum), float(top + std::log(sum))});
  }
}

TEST(SoftmaxRow, row_that_sees_nothing_is_zero_and_minus_infinity) {
  const SoftmaxRow fresh;
  EXPECT_EQ(fresh.normaliser(), 0.f);
  EXPECT_EQ(fresh.lse(), -kInf);
  const Part hidden = attend({-kInf, -kInf, -kInf}, {1, 2, 3}, 2);
  EXPECT_EQ(hidden.out, 0.f);
  EXPECT_EQ(hidden.lse, -kInf);
}

TEST(SoftmaxRow, hidden_tiles_before_and_after_change_nothing) {
  expect_same(attend({-kInf, -kInf, 0.5f, 1.f, -kInf, -kInf}, {9, 9, 1, 2, 9, 9}, 2), attend({0.5f, 1.f}, {1, 2}, 2));
}

TEST(SoftmaxRow, nan_and_plus_infinity_are_not_hidden) {
  for (const float bad : {float(NAN), kInf}) {
    const Part p = attend({1.f, bad, 2.f, 3.f}, {1, 1, 1, 1}, 2);
    EXPECT_TRUE(std::isnan(p.out) && std::isnan(p.lse)) << bad;
  }
  SoftmaxRow row;
  row.sum = NAN;
  EXPECT_TRUE(std::isnan(row.normaliser()) && std::isnan(row.lse()));
}

TEST(Merge, is_the_softmax_of_both_parts) {
  const std::vector<float> logit = draw(12, 3, 4.f), value = draw(12, 4, 1.f);
  const auto part = [&](size_t first, size_t last) {
    const auto cut = [&](const std::vector<float>& x) { return std::vector<float>(&x[0] + first, &x[0] + last); };
    return attend(cut(logit), cut(value), 4);
  };
  for (size_t cut = 0; cut <= 12; ++cut) expect_same(part(0, cut) + part(cut, 12), part(0, 12));
}

TEST(Merge, is_associative_and_commutative) {
  const std::vector<float> out = draw(300, 5, 1.f), lse = draw(300, 6, 20.f);
  for (size_t n = 0; n + 2 < out.size(); n += 3) {
    const Part a{out[n], lse[n]}, b{out[n + 1], lse[n + 1]}, c{out[n + 2], n % 2 ? lse[n + 2] : -kInf};
    expect_same((a + b) + c, a + (b + c));
    expect_same(a + b, b + a);
  }
}

TEST(Merge, shares_add_up_to_one_and_equal_parts_are_halves) {
  const Share s = merge(3.f, 3.f);
  EXPECT_EQ(s.a, 0.5f);
  EXPECT_EQ(s.b, 0.5f);
  EXPECT_NEAR(s.lse, 3 + std::log(2.0), 1e-6);
  const Share far = merge(1e4f, -1e4f);
  EXPECT_EQ(far.a, 1.f);
  EXPECT_EQ(far.b, 0.f);
  EXPECT_EQ(far.lse, 1e4f);
}

TEST(Merge, minus_infinity_vanishes) {
  for (const Share s : {merge(2.f, -kInf), merge(-kInf, 2.f)}) EXPECT_EQ(s.lse, 2.f);
  EXPECT_EQ(merge(2.f, -kInf).a, 1.f);
  EXPECT_EQ(merge(2.f, -kInf).b, 0.f);
  EXPECT_EQ(merge(-kInf, 2.f).a, 0.f);
  EXPECT_EQ(merge(-kInf, 2.f).b, 1.f);
  const Share none = merge(-kInf, -kInf);
  EXPECT_TRUE(none.a == 0.f && none.b == 0.f && none.lse == -kInf);
}

TEST(Merge, plus_infinity_wins_and_nan_is_not_hidden) {
  EXPECT_TRUE(merge(kInf, 5.f).a == 1.f && merge(kInf, 5.f).b == 0.f && merge(kInf, 5.f).lse == kInf);
  EXPECT_TRUE(merge(5.f, kInf).a == 0.f && merge(5.f, kInf).b == 1.f && merge(5.f, kInf).lse == kInf);
  for (const float other : {0.f, -kInf, kInf, float(NAN)})
    for (const Share s : {merge(NAN, other), merge(other, NAN)}) {
      EXPECT_TRUE(std::isnan(s.lse)) << other;
      EXPECT_TRUE(std::isnan(s.a) || std::isnan(s.b)) << other;
    }
}

TEST(RowEnd, running_result_and_sink_are_two_more_parts) {
  const Part now = attend({0.3f, -1.f, 2.f}, {1, 2, 3}, 3), running{-0.7f, 1.1f}, sink{0.f, 0.4f};
  SoftmaxRow row;
  row.admit(2.f * kLog2e);
  float sum = 0.f;  // not normalized
  const float logit[] = {0.3f, -1.f, 2.f}, value[] = {1, 2, 3};
  for (int n = 0; n < 3; ++n) {
    const float w = row.weight(logit[n] * kLog2e);
    row.sum += w, sum += w * value[n];
  }
  RowEnd end(row);
  expect_same({sum * end.now, end.lse}, now);
  EXPECT_EQ(end.before, 0.f) << "unless accumulating, what is there is not read";
  end.merge_running(running.lse);
  expect_same({sum * end.now + running.out * end.before, end.lse}, running + now);
  end.merge_sink(sink.lse);
  expect_same({sum * end.now + running.out * end.before, end.lse}, running + now + sink);
}

TEST(RowEnd, row_that_sees_nothing_keeps_the_running_result_or_the_sink) {
  RowEnd end{SoftmaxRow{}};
  end.merge_running(-1.5f);
  EXPECT_TRUE(end.before == 1.f && end.lse == -1.5f);
  RowEnd fresh{SoftmaxRow{}};
  fresh.merge_running(-kInf);
  EXPECT_TRUE(fresh.before == 0.f && fresh.now == 0.f && fresh.lse == -kInf);
  fresh.merge_sink(0.25f);
  EXPECT_TRUE(fresh.now == 0.f && fresh.lse == 0.25f);
}

}  // namespace
