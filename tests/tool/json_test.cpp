// SPDX-License-Identifier: Apache-2.0
#include "tool/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attune {
namespace {

TEST(Json, members_stay_in_the_order_they_were_added) {
  Json j = {{"z", 1}, {"a", "text"}};
  j["m"] = true;
  j["z"] = 2;  // an existing key keeps its position
  EXPECT_EQ(j.dump(), R"({"z":2,"a":"text","m":true})");
}

TEST(Json, names_with_values_are_an_object_and_anything_else_is_an_array) {
  EXPECT_EQ((Json{{"a", 1}}).dump(), R"({"a":1})");
  EXPECT_EQ((Json{1, 2, 3}).dump(), "[1,2,3]");
  EXPECT_EQ((Json{{"a", 1}, {2, 3}}).dump(), R"([["a",1],[2,3]])");
  EXPECT_EQ((Json{{"a", {{"b", {1, 2}}}}}).dump(), R"({"a":{"b":[1,2]}})");
  EXPECT_EQ(Json::array().dump() + Json::object().dump(), "[]{}");
  EXPECT_EQ(Json(std::vector<std::string>{"a", "b"}).dump(), R"(["a","b"])");
}

TEST(Json, null_becomes_what_is_asked_of_it) {
  Json j;
  EXPECT_EQ(j.dump(), "null");
  j["list"].push_back(1);
  j["list"].push_back(nullptr);
  j["list"].push_back({{"a", 1}});
  EXPECT_EQ(j.dump(), R"({"list":[1,null,{"a":1}]})");
}

TEST(Json, update_adds_members_and_replaces_those_that_are_there) {
  Json j = {{"a", 1}, {"b", 2}};
  j.update({{"c", 3}, {"a", 4}});
  EXPECT_EQ(j.dump(), R"({"a":4,"b":2,"c":3})");
}

TEST(Json, numbers_keep_their_kind_and_all_their_digits) {
  EXPECT_EQ(Json(UINT64_MAX).dump(), "18446744073709551615");
  EXPECT_EQ(Json(INT64_MIN).dump(), "-9223372036854775808");
  EXPECT_EQ(Json(1.0).dump(), "1.0");
  EXPECT_EQ(Json(0.1).dump(), "0.1");
  EXPECT_EQ(Json(1e300).dump(), "1e+300");
  EXPECT_EQ((Json{NAN, INFINITY}).dump(), "[null,null]");
  EXPECT_EQ((Json{true, false}).dump(), "[true,false]");
  static_assert(!std::is_constructible_v<Json, void*>, "a pointer is not a truth value");
}

TEST(Json, text_is_escaped_and_what_is_not_utf8_is_replaced) {
  EXPECT_EQ(Json("a\"\n").dump(), R"("a\"\n")");
  EXPECT_EQ(Json("a\xFF").dump(), "\"a\xEF\xBF\xBD\"");
}

TEST(Json, an_indentation_puts_every_member_on_a_line) {
  EXPECT_EQ((Json{{"a", {1}}}).dump(2), "{\n  \"a\": [\n    1\n  ]\n}");
}

}  // namespace
}  // namespace attune
