// SPDX-License-Identifier: Apache-2.0
#include "machine/library.h"

#include <gtest/gtest.h>

namespace attune {
namespace {

TEST(Library, takes_the_first_name_that_has_everything) {
  const Library c({"libattune_no_such.so.9", "libc.so.6"}, {"strlen"});
  ASSERT_TRUE(c.ok()) << c.missed();
  EXPECT_EQ(c.name(), "libc.so.6");
  EXPECT_EQ(c.missed(), "");
  ASSERT_NE(c.function<size_t(const char*)>("strlen"), nullptr);
  EXPECT_EQ(c.function<size_t(const char*)>("strlen")("four"), 4u);
  EXPECT_EQ(c.symbol("attune_no_such_symbol"), nullptr);
}

TEST(Library, says_of_each_name_what_it_missed) {
  const Library none({"libattune_no_such.so.9", "libc.so.6"}, {"strlen", "attune_no_such_symbol"});
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.name(), "");
  EXPECT_EQ(none.symbol("strlen"), nullptr);
  EXPECT_EQ(none.missed().find("libattune_no_such.so.9 cannot be opened: "), 0u) << none.missed();
  EXPECT_NE(none.missed().find("; libc.so.6 lacks attune_no_such_symbol"), std::string::npos) << none.missed();
}

TEST(Library, blas_multiplies_or_says_why_not) {
  std::string missed;
  const Blas* b = blas(&missed);
  ASSERT_EQ(b == nullptr, !missed.empty());
  if (!b) GTEST_SKIP() << missed;
  const float a[] = {1, 2, 3, 4}, identity[] = {1, 0, 0, 1};
  float c[4] = {};
  b->sgemm(101, 112, 111, 2, 2, 2, 1.f, a, 2, identity, 2, 0.f, c, 2);
  EXPECT_EQ(c[1], 3.f);
  EXPECT_EQ(c[2], 2.f);
}

TEST(Library, the_last_user_gives_blas_its_threads_back) {
  const Blas* b = blas();
  if (!b || !b->get_threads || !b->set_threads) GTEST_SKIP() << "no BLAS with a process-wide number of threads";
  b->set_threads(2);
  const int before = b->get_threads();
  {
    const BlasOneThread outer(*b);
    EXPECT_EQ(b->get_threads(), 1);
    { const BlasOneThread inner(*b); }
    EXPECT_EQ(b->get_threads(), 1);
  }
  EXPECT_EQ(b->get_threads(), before);
}

}  // namespace
}  // namespace attune
