// SPDX-License-Identifier: Apache-2.0
// Number formats: every bit pattern, and rounding compared with an independent method based only on the list of values
// of a format.
#include "core/number.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/dtypes.h"

using namespace attune;

namespace {

template <class T>
T from_bits(uint32_t bits) {
  T x;
  x.bits = decltype(x.bits)(bits);
  return x;
}

// Sign, exponent and fraction, as in the format tables; excludes 0x7C00 and above (f16) and 0x7F (e4m3).
double by_the_table(uint32_t bits, int exponent_bits, int mantissa, int bias) {
  const uint32_t exponent = bits >> mantissa & ((1u << exponent_bits) - 1), fraction = bits & ((1u << mantissa) - 1);
  const double sign = bits >> (exponent_bits + mantissa) & 1 ? -1 : 1, one = double(1u << mantissa);
  if (!exponent) return sign * std::ldexp(fraction / one, 1 - bias);
  return sign * std::ldexp(1 + fraction / one, int(exponent) - bias);
}

template <class T>
void expect_round_trip(int patterns) {
  for (int bits = 0; bits < patterns; ++bits) {
    const T x = from_bits<T>(uint32_t(bits));
    const float value = x;
    if (std::isnan(value)) ASSERT_TRUE(std::isnan(float(T(value)))) << bits;
    else ASSERT_EQ(T(value).bits, x.bits) << bits;
  }
}

TEST(Number, every_bit_pattern_comes_back) {
  expect_round_trip<F16>(1 << 16);
  expect_round_trip<Bf16>(1 << 16);
  expect_round_trip<E4m3>(1 << 8);
}

TEST(Number, every_bit_pattern_means_what_the_format_says) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const float half = from_bits<F16>(bits), brain = from_bits<Bf16>(bits);
    if ((bits & 0x7C00) != 0x7C00) ASSERT_EQ(half, by_the_table(bits, 5, 10, 15)) << bits;
    else if (bits & 0x3FF) ASSERT_TRUE(std::isnan(half)) << bits;
    else ASSERT_EQ(half, bits >> 15 ? -INFINITY : INFINITY);
    if ((bits & 0x7F80) != 0x7F80) ASSERT_EQ(brain, by_the_table(bits, 8, 7, 127)) << bits;
    else if (bits & 0x7F) ASSERT_TRUE(std::isnan(brain)) << bits;
    else ASSERT_EQ(brain, bits >> 15 ? -INFINITY : INFINITY);
  }
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float small = from_bits<E4m3>(bits);
    if ((bits & 0x7F) == 0x7F) ASSERT_TRUE(std::isnan(small)) << bits;
    else ASSERT_EQ(small, by_the_table(bits, 4, 3, 7)) << bits;
  }
  EXPECT_EQ(float(from_bits<E4m3>(0x7E)), 448.f);
  EXPECT_EQ(float(from_bits<F16>(0x7BFF)), 65504.f);
}

// The nearest of all finite values, ties to the even pattern; half a step past the largest value gives `beyond`.
template <class T>
struct Nearest {
  std::vector<double> values;  // of pattern 0, 1, ...: ascending
  uint32_t beyond;

  Nearest(uint32_t finite, uint32_t past_the_end) : beyond(past_the_end) {
    for (uint32_t bits = 0; bits < finite; ++bits) values.push_back(float(from_bits<T>(bits)));
    values.push_back(2 * values[finite - 1] - values[finite - 2]);  // the next value if the format continued
  }
  uint32_t operator()(float x) const {
    const double magnitude = std::fabs(double(x));
    size_t up = size_t(std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
    if (up == values.size()) return beyond;
    if (up > 0) {
      const double below = magnitude - values[up - 1], above = values[up] - magnitude;
      if (below < above || (below == above && up % 2)) --up;
    }
    return up == values.size() - 1 ? beyond : uint32_t(up);
  }
};

template <class T>
void expect_nearest(const Nearest<T>& nearest, uint32_t sign) {
  const auto check = [&](float x) {
    if (std::isnan(x)) return;
    ASSERT_EQ(T(x).bits, nearest(x) | (std::signbit(x) ? sign : 0)) << x;
  };
  std::mt19937 random(1);
  for (int n = 0; n < 300000; ++n) check(std::bit_cast<float>(uint32_t(random())));
  for (size_t n = 0; n + 1 < nearest.values.size(); ++n) {  // values, midpoints between them, and their neighbours
    const float value = float(nearest.values[n]), middle = float((nearest.values[n] + nearest.values[n + 1]) / 2);
    for (const float x : {value, middle, std::nextafter(value, INFINITY), std::nextafter(middle, INFINITY),
                          std::nextafter(middle, 0.f)})
      check(x), check(-x);
  }
}

TEST(Number, rounding_is_to_the_nearest_and_ties_to_even) {
  expect_nearest(Nearest<F16>(0x7C00, 0x7C00), 0x8000);
  expect_nearest(Nearest<E4m3>(0x7F, 0x7E), 0x80);
}

// bf16 is the upper half of an f32. One step beyond its largest value is not an f32, so it has a separate check.
TEST(Number, bf16_rounding_is_to_the_nearest_and_ties_to_even) {
  std::mt19937 random(2);
  for (int n = 0; n < 300000; ++n) {
    const uint32_t bits = uint32_t(random()) & (n % 3 ? 0xFFFFFFFF : 0xFFFF8000);  // every third at or near a tie
    const float x = std::bit_cast<float>(bits);
    if (!std::isfinite(x)) continue;
    const uint32_t down = bits >> 16, up = down + 1;  // in magnitude
    const uint64_t below = bits & 0xFFFF, above = 0x10000 - below;
    const uint32_t want = below < above || (below == above && down % 2 == 0) ? down : up;
    ASSERT_EQ(Bf16(x).bits, want) << x;
  }
  EXPECT_EQ(Bf16(3.4e38f).bits, 0x7F80) << "overflow is infinity";
}

TEST(Number, special_values_stay_what_they_are) {
  EXPECT_TRUE(std::isnan(float(F16(NAN))) && std::isnan(float(Bf16(NAN))) && std::isnan(float(E4m3(NAN))));
  EXPECT_TRUE(std::isnan(float(Bf16(std::bit_cast<float>(0x7F800001u))))) << "a NaN whose payload is cut off";
  EXPECT_TRUE(std::isnan(float(F16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_EQ(float(F16(-INFINITY)), -INFINITY);
  EXPECT_EQ(float(Bf16(-INFINITY)), -INFINITY);
  EXPECT_EQ(float(E4m3(-INFINITY)), -448.f) << "there is no infinity: saturates";
  EXPECT_EQ(float(E4m3(1e6f)), 448.f);
  EXPECT_EQ(F16(-0.f).bits, 0x8000);
  EXPECT_EQ(E4m3(-0.f).bits, 0x80);
}

#if defined __aarch64__
#define HALF __fp16
#elif defined __FLT16_MAX__ && !defined __clang__ && __GNUC__ >= 13
#define HALF _Float16
#endif
#ifdef HALF
TEST(Number, f16_agrees_with_the_compiler) {
  std::mt19937 random(3);
  for (int n = 0; n < 300000; ++n) {
    const float x = std::bit_cast<float>(uint32_t(random()));
    if (std::isnan(x)) continue;
    const HALF half = HALF(x);
    uint16_t bits;
    std::memcpy(&bits, &half, sizeof bits);
    ASSERT_EQ(F16(x).bits, bits) << x;
  }
}
#endif

TEST(Number, rounding_costs_at_most_what_is_said) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> draw(1.f, 2.f);
  double half = 0, brain = 0, small = 0;
  for (int n = 0; n < 20000; ++n) {
    const float x = draw(random);
    half = std::max(half, std::fabs(double(F16(x)) - x) / x);
    brain = std::max(brain, std::fabs(double(Bf16(x)) - x) / x);
    small = std::max(small, std::fabs(double(E4m3(x)) - x) / x);
  }
  const auto near = [](double worst, DType t) { return worst <= rounding_of(t) && worst > 0.9 * rounding_of(t); };
  EXPECT_TRUE(near(half, DType::f16)) << half;
  EXPECT_TRUE(near(brain, DType::bf16)) << brain;
  EXPECT_TRUE(near(small, DType::e4m3)) << small;
  EXPECT_EQ(rounding_of(DType::f32), std::ldexp(1, -24));
  EXPECT_EQ(rounding_of(DType::f64), std::ldexp(1, -53));
}

TEST(Number, sizes_are_those_of_the_types) {
  EXPECT_EQ(size_of(DType::none), 0);
  EXPECT_EQ(size_of(DType::f64), int(sizeof(double)));
  EXPECT_EQ(size_of(DType::f32), int(sizeof(float)));
  EXPECT_EQ(size_of(DType::f16), int(sizeof(F16)));
  EXPECT_EQ(size_of(DType::bf16), int(sizeof(Bf16)));
  EXPECT_EQ(size_of(DType::e4m3), int(sizeof(E4m3)));
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::i64), 8);
}

TEST(Number, e4m3_and_f64_are_floating_and_only_f32_and_the_halves_are_multiplied) {
  constexpr DType kAll[] = {DType::none, DType::f64,  DType::f32, DType::f16,
                            DType::bf16, DType::e4m3, DType::i32, DType::i64};
  std::string floating, multiplied;
  for (const DType t : kAll) floating += is_floating(t) ? '1' : '0', multiplied += is_f32_or_half(t) ? '1' : '0';
  EXPECT_EQ(floating, "01111100");
  EXPECT_EQ(multiplied, "00111000");
}

}  // namespace
