// SPDX-License-Identifier: Apache-2.0
// From a product to a logit: both policies compared with the formula in double.
#include "core/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

using namespace attune;

namespace {

struct Setting {
  Problem p{.heads_q = 2, .heads_kv = 1, .len_q = 4, .len_k = 6, .dim_qk = 16, .dim_v = 16};
  Args a{};
  Sequence s{.len_q = 4, .len_k = 6};
  float slopes[2] = {0.5f, 0.25f};
  int64_t seed[2] = {3, 4};
  std::vector<float> bias = std::vector<float>(2 * 4 * 2 * 6);

  Setting() {
    p.batch = 2;
    s.band = band_of(p.mask, 4, 6, 0, 0);
    for (size_t n = 0; n < bias.size(); ++n) bias[n] = 0.125f * float(n % 17) - 1;
    a[Role::slopes] = {.data = slopes, .dtype = DType::f32, .extent = {1, 1, 2, 1}, .stride = {0, 0, 1}};
    a[Role::seed] = {.data = seed, .dtype = DType::i64, .extent = {1, 1, 1, 2}};
    a[Role::bias] = {.data = bias.data(), .dtype = DType::f32, .extent = {2, 4, 2, 6}, .stride = {48, 12, 6}};
    a.softcap = 1.5f, a.dropout = 0.5f;
  }
};

TEST(Plain, logit_is_the_scaled_product_in_base_2) {
  Setting t;
  EXPECT_NEAR((Plain(t.p, t.a, t.s, 0, 0).logit(3.f, 1, 2)), 3 / 4.0 * std::log2(std::exp(1)), 1e-6);
  t.a.scale = 0.1f;
  EXPECT_NEAR((Plain(t.p, t.a, t.s, 0, 0).logit(3.f, 1, 2)), 0.3 * std::log2(std::exp(1)), 1e-6);
  EXPECT_EQ((Plain(t.p, t.a, t.s, 0, 0).keep(1, 2)), 1.f);
  EXPECT_EQ((Plain(t.p, t.a, t.s, 0, 0).slope_of_logit(9.f)), 1.f);
}

TEST(General, every_combination_of_options_is_the_formula) {
  for (unsigned bits = 0; bits < 8; ++bits) {
    Setting t;
    const bool cap = bits & 1, alibi = bits & 2, bias = bits & 4;
    if (cap) t.p.set(Option::softcap);
    if (alibi) t.p.set(Option::alibi);
    if (bias) t.p.set(Option::bias);
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 2; ++h) {
        const General score(t.p, t.a, t.s, b, h);
        for (int i = 0; i < 4; ++i)
          for (int j = 0; j < 6; ++j) {
            double want = 5.0 / 4;  // the product 5, scaled
            if (cap) want = 1.5 * std::tanh(want / 1.5);
            if (bias) want += t.bias[size_t(b * 48 + i * 12 + h * 6 + j)];
            if (alibi) want -= t.slopes[h] * std::abs(j - (i + 2));
            EXPECT_NEAR(score.logit(5.f, i, j), want / std::log(2), 2e-6);
            EXPECT_EQ(score.keep(i, j), 1.f);
          }
      }
    EXPECT_EQ(needs_general(t.p), bits != 0);
  }
}

TEST(General, slope_of_logit_is_its_derivative) {
  Setting t;
  EXPECT_EQ((General(t.p, t.a, t.s, 0, 0).slope_of_logit(7.f)), 1.f);
  t.p.set(Option::softcap);
  const General score(t.p, t.a, t.s, 0, 0);
  for (const float dot : {-9.f, -1.f, 0.f, 2.f, 30.f}) {
    const double c = 1.5, x = dot / 4, h = 1e-6;
    EXPECT_NEAR(score.slope_of_logit(dot), (c * std::tanh((x + h) / c) - c * std::tanh((x - h) / c)) / (2 * h), 1e-6);
  }
}

TEST(General, keeps_what_the_dropout_of_its_stream_keeps) {
  Setting t;
  t.p.set(Option::dropout);
  EXPECT_TRUE(needs_general(t.p));
  const Dropout dropout = dropout_of(t.p, t.a);
  const General score(t.p, t.a, t.s, 1, 1);
  int dropped = 0;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 6; ++j) {
      EXPECT_EQ(score.keep(i, j), dropout.factor(3, i + 2, j)) << "stream: batch 1 * 2 heads + head 1";
      dropped += score.keep(i, j) == 0.f;
    }
  EXPECT_TRUE(0 < dropped && dropped < 24);
}

TEST(BiasAt, reads_every_dtype_and_broadcasts_axes_of_extent_1) {
  const double f64[] = {0.5, -2};
  const float f32[] = {0.5f, -2.f};
  const F16 f16[] = {F16(0.5f), F16(-2.f)};
  const Bf16 bf16[] = {Bf16(0.5f), Bf16(-2.f)};
  const std::pair<const void*, DType> all[] = {
      {f64, DType::f64}, {f32, DType::f32}, {f16, DType::f16}, {bf16, DType::bf16}};
  for (const auto& [data, dtype] : all) {
    Tensor t{.data = const_cast<void*>(data), .dtype = dtype, .extent = {1, 1, 1, 2}};
    EXPECT_EQ(bias_at(t, 7, 8, 9, 1), -2.f) << name(dtype);
    t.extent = {2, 1, 1, 1}, t.stride.batch = 1;
    EXPECT_EQ(bias_at(t, 0, 8, 9, 5), 0.5f) << name(dtype);
    EXPECT_EQ(bias_at(t, 1, 8, 9, 5), -2.f) << name(dtype);
  }
}

}  // namespace
