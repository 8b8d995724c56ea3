// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <gtest/gtest.h>

using namespace attune;

namespace {

TEST(Status, refusal_is_a_sentence_and_success_is_empty) {
  EXPECT_TRUE(Status::good().ok());
  const Status s = Status::no("cpu_forward: dim ", 320, " is over ", std::string("256"), '.');
  EXPECT_FALSE(s.ok());
  EXPECT_EQ(s.message, "cpu_forward: dim 320 is over 256.");
}

TEST(Join, numbers_print_as_the_shortest_text_that_reads_back) {
  EXPECT_EQ(join(0.1, " ", 0.1f, " ", 1e300, " ", -2.5f), "0.1 0.1 1e+300 -2.5");
  EXPECT_EQ(join(INT64_MIN, " ", UINT64_MAX), "-9223372036854775808 18446744073709551615");
}

}  // namespace
