// SPDX-License-Identifier: Apache-2.0
#include "tool/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attune {
namespace {

TEST(Text, three_digits_whatever_the_size) {
  EXPECT_EQ(digits_text(0), "0");
  EXPECT_EQ(digits_text(1.234), "1.23");
  EXPECT_EQ(digits_text(12.34), "12.3");
  EXPECT_EQ(digits_text(1234.5), "1234");
  EXPECT_EQ(digits_text(0.01234), "0.0123");
  EXPECT_EQ(digits_text(9.996), "10.0");  // rounding adds a digit
  EXPECT_EQ(digits_text(-2.5), "-2.50");
  EXPECT_EQ(digits_text(NAN), "?");
}

TEST(Text, units_change_where_three_digits_would_overflow) {
  EXPECT_EQ(seconds_text(1.5e-9), "1.50 ns");
  EXPECT_EQ(seconds_text(999.4e-9), "999 ns");
  EXPECT_EQ(seconds_text(999.9e-9), "1.00 us");
  EXPECT_EQ(seconds_text(0.25), "250 ms");
  EXPECT_EQ(seconds_text(75), "75.0 s");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1.5 * 1024 * 1024), "1.50 MiB");
  EXPECT_EQ(count_text(68.7e9, "FLOP"), "68.7 GFLOP");
  EXPECT_EQ(count_text(537e6, "pairs"), "537 M pairs");
  EXPECT_EQ(count_text(12, "pairs"), "12.0 pairs");
}

TEST(Text, ticks_have_no_zeros_at_the_end) {
  EXPECT_EQ(tick_text(0.01), "10 ms");
  EXPECT_EQ(tick_text(0.0025), "2.5 ms");
  EXPECT_EQ(without_zeros("80.0"), "80");
  EXPECT_EQ(without_zeros("100"), "100");
  EXPECT_EQ(factor_text(1.4), "1.40x");
}

TEST(Text, kernels_are_named_without_their_arguments) {
  EXPECT_EQ(kernel_text("_ZN6attune7forwardILi64EEEvNS_6ParamsE"), "attune::forward<64>");
  EXPECT_EQ(kernel_text("_ZN6attune12_GLOBAL__N_15emptyEv"), "attune::(anonymous namespace)::empty");
  EXPECT_EQ(kernel_text("flash_fwd_kernel"), "flash_fwd_kernel");
}

}  // namespace
}  // namespace attune
