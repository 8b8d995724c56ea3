// SPDX-License-Identifier: Apache-2.0
// Properties of the row operations that modules do not exercise: strided views, memory between rows, threads, the rate
// of dropout.
#include "machine/layer_ops.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "machine/host.h"

namespace attune {
namespace {

std::vector<float> randoms(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& y : x) y = normal(random);
  return x;
}
Tensor tensor(std::vector<float>& x, Extents e, Strides s) {
  return {.data = x.data(), .dtype = DType::f32, .extent = e, .stride = s};
}
Tensor row(std::vector<float>& x) { return tensor(x, {1, 1, 1, int32_t(x.size())}, {}); }

TEST(LayerOps, column_sums_have_the_same_bits_whatever_the_threads) {
  std::vector<float> x = randoms(3000 * 7, 1), sum(7), first;
  const Tensor t = tensor(x, {3, 1000, 1, 7}, {7000, 7, 0});
  std::vector<float> scratch(column_bytes(t) / sizeof(float));
  for (const int threads : {1, 3}) {
    set_threads(threads);
    ASSERT_EQ(column_sum({.x = t, .sum = row(sum), .scratch = scratch.data()}, nullptr).message, "");
    if (first.empty()) first = sum;
    EXPECT_EQ(sum, first);
  }
  set_threads(0);
  for (size_t d = 0; d < 7; ++d) {
    double want = 0;
    for (size_t n = 0; n < 3000; ++n) want += x[n * 7 + d];
    EXPECT_NEAR(sum[d], want, 1e-3);
  }
  ASSERT_EQ(column_sum({.x = t, .sum = row(sum), .keep = 2.f, .scratch = scratch.data()}, nullptr).message, "");
  for (size_t d = 0; d < 7; ++d) EXPECT_NEAR(sum[d], 3 * first[d], 1e-3);
}

TEST(LayerOps, rotary_rotates_the_first_dims_of_a_piece_and_back) {
  for (const int halves : {0, 1}) {
    std::vector<float> x = randoms(2 * 5 * 3 * 8, 2), cos(5 * 3), sin(5 * 3);
    const std::vector<float> before = x;
    for (int n = 0; n < 15; ++n) cos[size_t(n)] = std::cos(0.3f * float(n)), sin[size_t(n)] = std::sin(0.3f * float(n));
    // Heads 1 and 2 of three, and 6 of their 8 dims.
    Tensor piece = tensor(x, {2, 5, 2, 8}, {5 * 3 * 8, 3 * 8, 8});
    piece.data = x.data() + 8;
    const Tensor c = tensor(cos, {1, 5, 1, 3}, {0, 3, 0}), s = tensor(sin, {1, 5, 1, 3}, {0, 3, 0});
    ASSERT_EQ(rotate({.x = piece, .cos = c, .sin = s, .halves = halves}, nullptr).message, "");
    for (size_t n = 0; n < x.size(); ++n) {
      const size_t d = n % 8, head = n / 8 % 3, place = n / 24 % 5;
      const size_t pair = halves ? d % 3 : d / 2, other = halves ? (d < 3 ? n + 3 : n - 3) : n ^ 1;
      const bool first = halves ? d < 3 : d % 2 == 0;
      const float angle = 0.3f * float(place * 3 + pair);
      const float rotated = before[n] * std::cos(angle) + (first ? -1.f : 1.f) * before[other] * std::sin(angle);
      EXPECT_NEAR(x[n], head == 0 || d >= 6 ? before[n] : rotated, 1e-6) << n;
    }
    ASSERT_EQ(rotate({.x = piece, .cos = c, .sin = s, .halves = halves, .inverse = 1}, nullptr).message, "");
    for (size_t n = 0; n < x.size(); ++n) EXPECT_NEAR(x[n], before[n], 1e-6);
  }
}

TEST(LayerOps, dropout_keeps_its_share_and_depends_on_seed_layer_and_place) {
  std::vector<float> x(200 * 50, 1.f), y(x.size()), z(x.size());
  int64_t seed[2] = {5, 1};
  const Tensor t = tensor(x, {1, 200, 1, 50}, {0, 50, 0}), of_y = tensor(y, t.extent, t.stride),
               of_z = tensor(z, t.extent, t.stride);
  const Tensor s{.data = seed, .dtype = DType::i64, .extent = {1, 1, 1, 2}};
  ASSERT_EQ(drop({.x = t, .out = of_y, .seed = s, .p = 0.25f, .layer = 7}, nullptr).message, "");
  double kept = 0;
  for (const float v : y) {
    EXPECT_TRUE(v == 0.f || std::abs(v - 4.f / 3) < 1e-6f);
    kept += v != 0.f;
  }
  EXPECT_NEAR(kept / double(y.size()), 0.75, 0.02);
  ASSERT_EQ(drop({.x = t, .out = of_z, .seed = s, .p = 0.25f, .layer = 7}, nullptr).message, "");
  EXPECT_EQ(y, z);
  ASSERT_EQ(drop({.x = t, .out = of_z, .seed = s, .p = 0.25f, .layer = 8}, nullptr).message, "");
  EXPECT_NE(y, z);
  seed[1] = 2;
  ASSERT_EQ(drop({.x = t, .out = of_z, .seed = s, .p = 0.25f, .layer = 7}, nullptr).message, "");
  EXPECT_NE(y, z);
}

TEST(LayerOps, gradients_are_added_to_what_is_kept) {
  std::vector<float> x = randoms(6, 3), d_out = randoms(3, 4), once(6, NAN), twice = randoms(6, 5);
  const std::vector<float> before = twice;
  const auto call = [&](std::vector<float>& dx, float keep) {
    return activate_backward(
               {.x = row(x), .d_out = row(d_out), .dx = row(dx), .kind = Activation::swiglu, .keep = keep}, nullptr)
        .message;
  };
  ASSERT_EQ(call(once, 0.f), "");
  ASSERT_EQ(call(twice, 2.f), "");
  for (size_t n = 0; n < 6; ++n) EXPECT_NEAR(twice[n], once[n] + 2 * before[n], 1e-6);
}

TEST(LayerOps, other_dtypes_are_refused) {
  Tensor t{.dtype = DType::f64};
  EXPECT_EQ(rotate({.x = t}, nullptr).message, "rotate: dtype f64 is not one of f32, f16, bf16");
}

}  // namespace
}  // namespace attune
