// SPDX-License-Identifier: Apache-2.0
// The dropout mask is part of the library's contract: Random123's known answers, and dependence on positions only.
#include "core/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace attune;

namespace {

void expect_words(Words4 got, Words4 want) {
  for (int n = 0; n < 4; ++n) EXPECT_EQ(got.w[n], want.w[n]) << "word " << n;
}

TEST(Philox, gives_the_known_answers_of_random123) {
  constexpr uint32_t ones = 0xFFFFFFFF;
  expect_words(philox({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_words(philox({{ones, ones, ones, ones}}, ones, ones), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Dropout, mask_is_the_contract) {
  // Counter: key position / 4, query position, batch and head, low offset; key: low seed, high seed xor high offset.
  const Dropout d{.seed = 0x1122334455667788, .offset = 0x99AABBCC00112233, .below = 0x80000000, .kept = 2.f};
  const int64_t q = (int64_t(3) << 32) + 7, k = (int64_t(5) << 34) + 42;
  const Words4 words = philox({{uint32_t(k >> 2), 7, 21, 0x00112233}}, 0x55667788, 0x11223344u ^ 0x99AABBCCu);
  expect_words(d.words(21, q, k), words);
  for (int n = 0; n < 4; ++n)
    EXPECT_EQ(d.factor(21, q, k - 2 + n), words.w[n] < 0x80000000 ? 0.f : 2.f) << "k is 2 past a multiple of 4";
}

TEST(Dropout, every_argument_changes_the_mask) {
  const Dropout d{.seed = 1, .offset = 2, .below = 1};
  const auto differ = [&](Words4 w) { return w.w[0] != d.words(3, 4, 8).w[0]; };
  EXPECT_TRUE(differ(d.words(4, 4, 8)) && differ(d.words(3, 5, 8)) && differ(d.words(3, 4, 12)));
  for (const Dropout other : {Dropout{.seed = 2, .offset = 2}, Dropout{.seed = 1, .offset = 3},
                              Dropout{.seed = 1 + (uint64_t(1) << 32), .offset = 2},
                              Dropout{.seed = 1, .offset = 2 + (uint64_t(1) << 32)}})
    EXPECT_TRUE(differ(other.words(3, 4, 8)));
}

TEST(Dropout, drops_as_many_as_asked_and_scales_the_rest) {
  Problem p;
  p.set(Option::dropout);
  int64_t seed[] = {42, 7};
  Args a;
  a[Role::seed] = {.data = seed, .dtype = DType::i64, .extent = {1, 1, 1, 2}};
  for (const float rate : {0.f, 0.1f, 0.5f, 0.9f}) {
    a.dropout = rate;
    const Dropout d = dropout_of(p, a);
    EXPECT_EQ(d.seed, 42u);
    EXPECT_EQ(d.offset, 7u);
    double sum = 0, dropped = 0;
    for (int q = 0; q < 200; ++q)
      for (int k = -100; k < 100; ++k) {
        const float factor = d.factor(5, q, k);
        sum += factor, dropped += factor == 0.f;
        ASSERT_TRUE(factor == 0.f || factor == 1.f / (1.f - rate));
      }
    EXPECT_NEAR(dropped / 40000, rate, 4 * std::sqrt(rate * (1 - rate) / 40000)) << rate;
    EXPECT_NEAR(sum / 40000, 1, 5 * std::sqrt(rate / (1 - rate) / 40000)) << "the mean weight is kept";
  }
  a.dropout = std::nextafter(1.f, 0.f);
  EXPECT_EQ(dropout_of(p, a).below, 0xFFFFFF00u) << "the largest rate does not wrap around";
}

TEST(Dropout, without_the_option_nothing_is_read_and_nothing_dropped) {
  Args a;
  a.dropout = 0.5f;
  const Dropout d = dropout_of(Problem{}, a);
  EXPECT_EQ(d.below, 0u);
  EXPECT_EQ(d.factor(0, 0, 0), 1.f);
}

TEST(Dropout, batches_and_heads_have_streams_of_their_own) {
  const Problem p{.batch = 3, .heads_q = 5};
  EXPECT_EQ(batch_head(p, 0, 4), 4u);
  EXPECT_EQ(batch_head(p, 2, 3), 13u);
}

}  // namespace
