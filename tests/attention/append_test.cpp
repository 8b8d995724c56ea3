// SPDX-License-Identifier: Apache-2.0
// Where append writes new rows when the integers in the arguments are wrong: on a GPU they are not checked beforehand.
#include "attention/tile/append.h"

#include <gtest/gtest.h>

#include <vector>

namespace attune {
namespace {

// One sequence, one head, one dim: element n of the cache is row n.
struct Given {
  Problem p{};
  Args a{};
  std::vector<float> cache = std::vector<float>(24);
  std::vector<int32_t> used{0}, index{0}, table{0, 1, 2};

  Given(const char* line, Extents k, int added) {
    EXPECT_TRUE(parse(line, p).ok()) << line;
    a[Role::k] = {.data = cache.data(), .dtype = DType::f32, .extent = k, .stride = {k.seq, 1, 1}};
    a[Role::k_new] = {.data = cache.data(), .dtype = DType::f32, .extent = {1, added, 1, 1}};
    a[Role::used_k] = {.data = used.data(), .dtype = DType::i32, .extent = {1, 1, 1, 1}};
  }
  void numbers(Role r, std::vector<int32_t>& values) {
    a[r] = {.data = values.data(), .dtype = DType::i32, .extent = {1, 1, 1, int32_t(values.size())}};
  }
  int64_t place(int n) const {  // of new row n; -1 if it is not stored
    const char* at = appended_row(p, a, Role::k, 0, n, 0);
    return at ? (at - reinterpret_cast<const char*>(cache.data())) / 4 : -1;
  }
};

TEST(AppendedRow, lies_behind_the_used_ones_of_a_linear_cache) {
  Given g("forward f32 b1 h1 q1 k8 d1 full append", {3, 8, 1, 1}, 2);
  g.numbers(Role::cache_index, g.index);
  g.index[0] = 2, g.used[0] = 5;
  EXPECT_EQ(g.place(0), 21);
  EXPECT_EQ(g.place(1), 22);
  g.a[Role::used_k] = {};
  EXPECT_EQ(g.place(0), 22) << "without a length: the last rows";
}

TEST(AppendedRow, is_nowhere_where_it_does_not_fit) {
  Given g("forward f32 b1 h1 q1 k8 d1 full append", {3, 8, 1, 1}, 2);
  g.numbers(Role::cache_index, g.index);
  for (const int32_t used : {7, 8, 9, INT32_MAX, -1, -2, INT32_MIN}) {
    g.used[0] = used;
    EXPECT_EQ(g.place(0), used == 7 ? 7 : -1) << used;
    EXPECT_EQ(g.place(1), -1) << used;
  }
  g.used[0] = 0;
  for (const int32_t row : {3, -1, INT32_MAX, INT32_MIN}) {
    g.index[0] = row;
    EXPECT_EQ(g.place(0), -1) << "row " << row << " of the cache";
  }
  Given more("forward f32 b1 h1 q1 k8 d1 full append", {3, 8, 1, 1}, 9);  // more rows than the cache holds
  more.a[Role::used_k] = {};
  EXPECT_EQ(more.place(0), -1);
}

TEST(AppendedRow, is_found_in_the_page_table) {
  Given g("forward f32 b1 h1 q1 k8 d1 full append paged4", {6, 4, 1, 1}, 3);
  g.numbers(Role::page_table, g.table);
  g.table = {5, 0, 2}, g.numbers(Role::page_table, g.table);
  g.used[0] = 3;
  EXPECT_EQ(g.place(0), 23);
  EXPECT_EQ(g.place(1), 0);
  for (const int32_t page : {6, -1, INT32_MAX, INT32_MIN}) {
    g.table[1] = page;
    EXPECT_EQ(g.place(1), -1) << "page " << page;
  }
  g.used[0] = 11;
  EXPECT_EQ(g.place(0), 11);
  EXPECT_EQ(g.place(1), -1) << "behind the last page";
}

TEST(RotaryRow, is_one_of_the_table) {
  Args a;
  float cos[3] = {};
  a[Role::rotary_cos] = {.data = cos, .dtype = DType::f32, .extent = {1, 3, 1, 1}, .stride = {0, 1, 0}};
  EXPECT_EQ(rotary_row(a, Role::rotary_cos, 1), cos + 1);
  EXPECT_EQ(rotary_row(a, Role::rotary_cos, -5), cos);
  EXPECT_EQ(rotary_row(a, Role::rotary_cos, int64_t(1) << 40), cos + 2);
  a[Role::rotary_cos].extent.seq = 0;
  EXPECT_EQ(rotary_row(a, Role::rotary_cos, 0), nullptr);
}

TEST(CarveRotated, takes_room_for_every_query_and_only_where_something_turns) {
  Problem p;
  Workspace none, some;
  ASSERT_TRUE(parse("forward bf16 b3 h4/2 q5 k8 d16 causal append", p).ok());
  carve_rotated(none, p);
  EXPECT_EQ(none.used, 0u);
  ASSERT_TRUE(parse("forward bf16 b3 h4/2 q5 k8 d16 causal append rotary", p).ok());
  carve_rotated(some, p);
  EXPECT_EQ(some.used, size_t(3 * 5 * 4 * 16 * 2));
}

}  // namespace
}  // namespace attune
