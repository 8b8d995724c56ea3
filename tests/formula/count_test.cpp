// SPDX-License-Identifier: Apache-2.0
// The visible pairs of formulas: counted where they are few, sampled without a bias where they are many.
#include "core/formula/count.h"

#include <gtest/gtest.h>

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
