// SPDX-License-Identifier: Apache-2.0
#include "core/divisor.h"

#include <gtest/gtest.h>

#include <random>

namespace attune {
namespace {

constexpr uint32_t kMost = (uint32_t(1) << 31) - 1;

void expect_exact(uint32_t n, uint32_t d) {
  const Divisor divisor(d);
  ASSERT_EQ(divisor.divide(n), n / d) << n << " / " << d;
  ASSERT_EQ(divisor.rest(n), n % d) << n << " % " << d;
}

TEST(Divisor, IsExactAtEveryEdge) {
  for (const uint64_t d : {1u, 2u, 3u, 5u, 7u, 10u, 641u, 65535u, 65536u, 65537u, 1u << 30, kMost - 1, kMost})
    for (const uint64_t n : {uint64_t(0), uint64_t(1), d - 1, d, d + 1, d * 2 - 1, d * 2, kMost / d * d})
      if (n <= kMost) expect_exact(uint32_t(n), uint32_t(d));
  for (const uint32_t d : {1u, 2u, 3u, 7u, 1u << 30, kMost}) expect_exact(kMost, d);
}

TEST(Divisor, IsExactAtRandom) {
  std::mt19937 random(1);
  for (int n = 0; n < 200000; ++n) expect_exact(random() >> 1, (random() >> 1 >> random() % 31) | 1);
}

TEST(Divisor, OfSmallNumbersIsExactThroughout) {
  for (uint32_t d = 1; d < 300; ++d)
    for (uint32_t n = 0; n < 3000; ++n) expect_exact(n, d);
}

}  // namespace
}  // namespace attune
