// SPDX-License-Identifier: Apache-2.0
// Backward weights for large logits.
#include "core/large_logit.h"

#include <gtest/gtest.h>

namespace attune {
namespace {

TEST(LargeLogit, weights_are_1_for_the_largest_logit_and_never_more) {
  for (const float logit : {0x1.8p24f, 0x1.234567p31f, -0x1.fffffep33f, 3e36f, 0x1.8p127f, -0x1.ffep127f}) {
    for (const float off : {-6 * 0x1p-24f, 0.f, 6 * 0x1p-24f}) {  // possible loss from scaling and summing
      const float lse = lse_of_weights((logit + std::fabs(logit) * off) * kLn2);
      EXPECT_EQ(exponent_of_weight(logit, lse), 0.f) << logit << " " << off;
    }
    const float lse = lse_of_weights(logit * kLn2);
    EXPECT_LT(exponent_of_weight(logit - std::fabs(logit) * 0x1p-17f, lse), -64.f) << logit;
  }
  EXPECT_EQ(lse_of_weights(-INFINITY), INFINITY);
  EXPECT_EQ(exponent_of_weight(-0x1p33f, INFINITY), -INFINITY);
}

// Produced by masks such as torch.finfo(torch.float32).min.
TEST(LargeLogit, a_log_sum_exp_beyond_f32_in_base_2_is_a_number) {
  for (const float lse : {-3.4e38f, -2.5e38f, 2.5e38f, 3.4e38f}) {
    EXPECT_TRUE(std::isfinite(lse_of_weights(lse))) << lse;
    EXPECT_TRUE(is_lowered(lse_of_weights(lse))) << lse;
  }
  EXPECT_LE(exponent_of_weight(INFINITY, lse_of_weights(3.4e38f)), 0.f);
  EXPECT_TRUE(std::isnan(lse_of_weights(NAN)));
}

TEST(LargeLogit, a_log_sum_exp_that_is_large_stays_large_when_it_is_lowered) {
  for (int n = 0; n <= 40; ++n) {  // 2^24 lies between the fifth and the sixth value
    const float lse = 11629075.f + float(n);
    EXPECT_LE(exponent_of_weight(lse * kLog2e, lse_of_weights(lse)), 0.f) << n;
  }
  EXPECT_LT(lse_of_weights(0x1p30f), 0x1p30f * kLog2e);
  EXPECT_LT(lse_of_weights(-0x1.00001p24f), -0x1.00001p24f * kLog2e);
}

TEST(LargeLogit, weights_of_an_ordinary_row_are_left_alone) {
  EXPECT_EQ(lse_of_weights(1000.f), 1000.f * kLog2e);
  EXPECT_EQ(exponent_of_weight(1001.f, 1000.f), 1.f);
  EXPECT_TRUE(std::isnan(exponent_of_weight(NAN, 0x1p30f)));
}

}  // namespace
}  // namespace attune
