// SPDX-License-Identifier: Apache-2.0
// The visible pairs of formulas: counted where they are few, sampled without a bias where they are many.
#include "core/formula/count.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/work.h"

namespace attune {
namespace {

double pairs_of(const char* line) {
  Problem p;
  const Status s = parse(line, p);
  EXPECT_TRUE(s.ok()) << line << ": " << s.message;
  return cost(p).pairs;
}

TEST(formula_count, is_exact_for_a_million_pairs) {
  EXPECT_EQ(pairs_of("forward f32 b1 h4 q1024 k1024 d64 full mask{k%8==1}"), 4 * 1024 * 128);
  EXPECT_EQ(pairs_of("forward f32 b1 h4 q1024 k1024 d64 full mask{k%16==0}"), 4 * 1024 * 64);
  EXPECT_EQ(pairs_of("forward f32 b1 h4 q1024 k1024 d64 full mask{q==k}"), 4 * 1024);
  EXPECT_EQ(pairs_of("forward f32 b1 h4 q128 k128 d64 full mask{q>=k}"),
            pairs_of("forward f32 b1 h4 q128 k128 d64 causal"));
  EXPECT_EQ(pairs_of("forward f32 b1 h2 q8 k64 d64 full@top_left mask{q>=k}"), 2 * 36);
  EXPECT_EQ(pairs_of("forward f32 b2 h3 q64 k64 d64 full mask{h==1}"), 2 * 64 * 64);
  EXPECT_EQ(pairs_of("forward f32 b1 h1 q64 k64 d64 full score{q>=k?s:-inf}"), 64 * 65 / 2);
}

TEST(formula_count, looks_at_every_sequence_that_a_formula_tells_apart) {
  EXPECT_EQ(pairs_of("forward f32 b4 h3 q64 k64 d64 full mask{b==1}"), 3 * 64 * 64);
  EXPECT_EQ(pairs_of("forward f32 b4 h3 q64 k64 d64 full mask{k<16*b}"), 3 * 64 * (16 + 32 + 48));
  const double all = 1000. * 64 * 64;
  EXPECT_NEAR(pairs_of("forward f32 b1000 h1 q64 k64 d64 full mask{b%2==0}") / all, 0.5, 0.05);
}

// Documents end within blocks of 64 elements, whose bounds decide nothing.
TEST(formula_count, reads_the_elements_of_arrays) {
  Problem p;
  ASSERT_TRUE(parse("forward f32 b2 h2 q200 k200 d8 causal mask{doc[q]==doc[k]} score{gain[k]<0.5?-inf:s}", p).ok());
  std::vector<int32_t> doc(200);
  std::vector<float> x(2 * 200 * 2 * 8), gain(200);
  double pairs = 0;
  for (int q = 0; q < 200; ++q) {
    doc[size_t(q)] = q / 7, gain[size_t(q)] = q % 3 == 0 ? 0.f : q % 31 == 5 ? NAN : 1.f;
    for (int k = 0; k <= q; ++k) pairs += k / 7 == q / 7 && k % 3 != 0;
  }
  Args a;
  for (const Role r : {Role::q, Role::k, Role::v, Role::out})
    a[r] = {.data = x.data(), .dtype = DType::f32, .extent = {2, 200, 2, 8}, .stride = {3200, 16, 8}};
  a[variant_tensor(0)] = {.data = doc.data(), .dtype = DType::i32, .extent = {1, 1, 1, 200}};
  a[variant_tensor(1)] = {.data = gain.data(), .dtype = DType::f32, .extent = {1, 1, 1, 200}};
  EXPECT_EQ(cost(p, &a).pairs, 2 * 2 * pairs);
}

TEST(formula_count, has_no_bias_where_it_samples) {
  const double all = 4096. * 4096;
  EXPECT_NEAR(pairs_of("forward f32 b1 h1 q4096 k4096 d64 full mask{k%8==1}") / all, 1. / 8, 0.003);
  EXPECT_NEAR(pairs_of("forward f32 b1 h1 q4096 k4096 d64 full mask{(q-k)%16==0}") / all, 1. / 16, 0.003);
  EXPECT_NEAR(pairs_of("forward f32 b1 h8 q4096 k4096 d64 full mask{h%2==0&&k%2==0}") / all, 2, 0.02);
}

TEST(formula_count, takes_what_depends_on_unknown_arrays_for_visible) {
  EXPECT_EQ(pairs_of("forward f32 b1 h1 q64 k64 d64 causal mask{doc[q]==doc[k]}"), 64 * 65 / 2);
}

}  // namespace
}  // namespace attune
