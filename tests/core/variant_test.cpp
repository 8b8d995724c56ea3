// SPDX-License-Identifier: Apache-2.0
// A variant has one canonical spelling, whatever the order of its parameters.
#include <gtest/gtest.h>

#include <string>

#include "core/problem.h"

using namespace attune;

namespace {

Variant variant(std::string_view text) {
  Variant v;
  const Status s = assign(v, text);
  EXPECT_TRUE(s.ok()) << s.message;
  return v;
}

TEST(Variant, has_one_spelling) {
  Problem a, b;
  ASSERT_TRUE(parse("forward f32 b1 h1 q1 k1 d64 full : dilated segments=8,16 rates=1,2", a).ok());
  ASSERT_TRUE(parse("forward f32 b1 h1/1 q1 k1 d64/64 full linear : dilated rates=1,2 segments=8,16", b).ok());
  EXPECT_EQ(a, b);
  EXPECT_STREQ(variant("x c=3 a=1 b=2").text, "x a=1 b=2 c=3");
  EXPECT_STREQ(variant("x a1=1 a=2").text, "x a=2 a1=1") << "sorted by name, not by name=value";
}

TEST(Variant, parameters_are_found_by_name) {
  const Variant v = variant("nsa l=32 ld=7 gate=softmax d=16,-2");
  EXPECT_EQ(word(v), "nsa");
  EXPECT_EQ(value(v, "l"), "32");
  EXPECT_EQ(value(v, "ld"), "7");
  EXPECT_EQ(value(v, "gate"), "softmax");
  EXPECT_EQ(value(v, "nsa"), "") << "the word is not a parameter";
  EXPECT_EQ(value(v, "mode"), "");
  EXPECT_EQ(word(Variant{}), "");
  EXPECT_EQ(value(Variant{}, "l"), "");
}

TEST(Variant, numbers_are_all_or_none) {
  const Variant v = variant("x a=1,-2,30 b=1,x c=1,,2 d=1, e=, f=99999999999 g=7");
  const Numbers a = numbers(v, "a");
  ASSERT_EQ(a.count, 3);
  EXPECT_TRUE(a[0] == 1 && a[1] == -2 && a[2] == 30);
  for (const char* bad : {"b", "c", "d", "e", "f", "h"}) EXPECT_EQ(numbers(v, bad).count, 0) << bad;
  EXPECT_EQ(numbers(v, "g")[0], 7);
}

TEST(Variant, numbers_have_a_fixed_room) {
  std::string list = "x a=0";
  for (int n = 1; n < 32; ++n) list += join(",", n);
  EXPECT_EQ(numbers(variant(list), "a").count, 32);
  EXPECT_EQ(numbers(variant(list), "a")[31], 31);
  EXPECT_EQ(numbers(variant(list + ",32"), "a").count, 0) << "one too many";
}

TEST(Variant, refusals_are_sentences) {
  const auto refusal = [](std::string_view text) {
    Variant v = variant("before");
    const std::string message = assign(v, text).message;
    EXPECT_EQ(v.text[0], 0) << "a refused variant is none";
    return message;
  };
  EXPECT_EQ(refusal("x "), "variant: ends in a space");
  EXPECT_EQ(refusal(" x"), "variant ' x': the name has characters other than a-z, 0-9 and _");
  EXPECT_EQ(refusal("x  a=1"), "variant 'x  a=1': '' is not name=value");
  EXPECT_EQ(refusal("x a"), "variant 'x a': 'a' is not name=value");
  EXPECT_EQ(refusal("x a="), "variant 'x a=': 'a=' is not name=value");
  EXPECT_EQ(refusal("x a=B"), "variant 'x a=B': 'a=B' is not name=value");
  EXPECT_EQ(refusal("x a=1=2"), "variant 'x a=1=2': 'a=1=2' is not name=value");
  EXPECT_EQ(refusal("x b=2 a=1 b=3"), "variant 'x b=2 a=1 b=3': 'b' is given twice");
}

TEST(Variant, has_room_for_159_characters) {
  const std::string longest = "x a=" + std::string(155, '1');
  EXPECT_EQ(variant(longest).text, longest);
  Variant v;
  EXPECT_NE(assign(v, longest + "1").message.find("is longer than 159 characters"), std::string::npos);
}

}  // namespace
