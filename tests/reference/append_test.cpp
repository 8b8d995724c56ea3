// SPDX-License-Identifier: Apache-2.0
// The definitions of append and rotary, by hand.
#include "tests/reference/sample.h"

namespace attune {
namespace {

// Tables with `pairs` angles per position: pair n rotates by (n + 1) / 10 per position.
void tables(Sample& s, int rows, int pairs) {
  s.add(Role::rotary_cos, {1, rows, 1, pairs}, DType::f32).add(Role::rotary_sin, {1, rows, 1, pairs}, DType::f32);
  const auto angle = [](int row, int pair) { return 0.1 * (pair + 1) * row; };
  std::vector<double> cos, sin;
  s.each(Role::rotary_cos, [&](int, int row, int, int d) {
    cos.push_back(std::cos(angle(row, d))), sin.push_back(std::sin(angle(row, d)));
  });
  s.set(Role::rotary_cos, cos).set(Role::rotary_sin, sin);
}

Sample cache(const std::string& line, int rows, int added) {
  Sample s(line);
  const Problem& p = s.problem;
  s.add(Role::q, {p.batch, p.len_q, p.heads_q, p.dim_qk}).normal(Role::q, 1);
  s.add(Role::k, {p.batch, rows, p.heads_kv, p.dim_qk}).add(Role::v, {p.batch, rows, p.heads_kv, p.dim_v});
  s.add(Role::k_new, {p.batch, added, p.heads_kv, p.dim_qk}).normal(Role::k_new, 2);
  s.add(Role::v_new, {p.batch, added, p.heads_kv, p.dim_v}).normal(Role::v_new, 3);
  s.outputs();
  return s;
}

TEST(Append, rows_go_behind_the_used_ones_and_nowhere_else) {
  Sample s = cache("forward f64 b2 h2/1 q1 k8 d2 causal append", 9, 3);
  s.integers(Role::used_k, {2}, {0, 4}).integers(Role::cache_index, {2}, {1, 0});
  s.normal(Role::k, 4).normal(Role::v, 5);
  const std::vector<double> before = s.values(Role::k);
  s.run();
  std::vector<double> want = before;
  for (int n = 0; n < 3; ++n)
    for (int d = 0; d < 2; ++d) {
      want[size_t((9 + n) * 2 + d)] = s.at(Role::k_new, 0, n, 0, d);  // sequence 0 uses row 1 of the cache
      want[size_t((4 + n) * 2 + d)] = s.at(Role::k_new, 1, n, 0, d);
      EXPECT_EQ(s.at(Role::v, 1, n, 0, d), s.at(Role::v_new, 0, n, 0, d));
      EXPECT_EQ(s.at(Role::v, 0, 4 + n, 0, d), s.at(Role::v_new, 1, n, 0, d));
    }
  EXPECT_EQ(s.values(Role::k), want);
}

TEST(Append, without_a_length_the_cache_is_full_afterwards) {
  Sample s = cache("forward f64 b1 h1 q1 k4 d2 full append", 4, 1);
  s.normal(Role::k, 4).normal(Role::v, 5).run();
  for (int d = 0; d < 2; ++d) EXPECT_EQ(s.at(Role::k, 0, 3, 0, d), s.at(Role::k_new, 0, 0, 0, d));
}

TEST(Append, pages_are_found_in_the_table) {
  Sample s = cache("forward f64 b1 h1 q1 k8 d2 causal append paged2", 2, 3);
  s.add(Role::k, {5, 2, 1, 2}).add(Role::v, {5, 2, 1, 2}).normal(Role::k, 4).normal(Role::v, 5);
  s.integers(Role::page_table, {1, 1, 1, 4}, {4, 0, 3, -1}).integers(Role::used_k, {1}, {3});
  s.run();
  const int place[][2] = {{0, 1}, {3, 0}, {3, 1}};
  for (int n = 0; n < 3; ++n)
    for (int d = 0; d < 2; ++d)
      EXPECT_EQ(s.at(Role::v, place[n][0], place[n][1], 0, d), s.at(Role::v_new, 0, n, 0, d)) << n;
}

// Key j of a cache is rotated by its row, including padding; dims beyond the tables are not rotated.
TEST(Rotary, a_new_key_turns_by_its_row_of_the_cache) {
  for (const bool half : {false, true}) {
    Sample s = cache(half ? "forward f64 b1 h1 q2 k16 d6 causal append rotary_half"
                          : "forward f64 b1 h1 q2 k16 d6 causal append rotary", 16, 2);
    s.integers(Role::used_k, {1}, {7}).integers(Role::left_pad, {1}, {4}).normal(Role::k, 4).normal(Role::v, 5);
    tables(s, 16, 2);
    s.run();
    for (int n = 0; n < 2; ++n)
      for (int pair = 0; pair < 2; ++pair) {
        const int low = half ? pair : 2 * pair, high = half ? pair + 2 : 2 * pair + 1;
        const double x = s.at(Role::k_new, 0, n, 0, low), y = s.at(Role::k_new, 0, n, 0, high);
        const double angle = 0.1 * (pair + 1) * (7 + n);
        EXPECT_NEAR(s.at(Role::k, 0, 7 + n, 0, low), x * std::cos(angle) - y * std::sin(angle), 1e-6);
        EXPECT_NEAR(s.at(Role::k, 0, 7 + n, 0, high), x * std::sin(angle) + y * std::cos(angle), 1e-6);
      }
    for (int d = 4; d < 6; ++d) EXPECT_EQ(s.at(Role::k, 0, 8, 0, d), s.at(Role::k_new, 0, 1, 0, d));
  }
}

// A query at the position of its own new key: both rotate by the same angle, so their product is unchanged.
TEST(Rotary, a_query_turns_as_the_key_it_stands_on) {
  for (const char* option : {"append rotary", "append rotary_half"}) {
    Sample s = cache(std::string("forward f64 b1 h1 q2 k16 d4 window0,0 ") + option, 16, 2);
    s.integers(Role::used_k, {1}, {5}).integers(Role::left_pad, {1}, {3}).normal(Role::k, 4).normal(Role::v, 5);
    tables(s, 16, 2);
    s.run();
    for (int i = 0; i < 2; ++i) {
      double product = 0;
      for (int d = 0; d < 4; ++d) product += s.at(Role::q, 0, i, 0, d) * s.at(Role::k_new, 0, i, 0, d);
      EXPECT_NEAR(s.at(Role::lse, 0, i, 0), product / 2, 1e-6);
    }
  }
}

// Absolute positions are used as given: key 0 at 2, query 0 at 6, regardless of padding.
TEST(Rotary, given_positions_hold) {
  Sample s = cache("forward f64 b1 h1 q1 k16 d2 full@absolute append rotary", 16, 1);
  s.integers(Role::used_k, {1}, {5}).integers(Role::left_pad, {1}, {3}).normal(Role::k, 4).normal(Role::v, 5);
  s.integers(Role::positions, {1, 1, 1, 2}, {6, 2}, DType::i64);
  tables(s, 16, 1);
  s.run();
  const double angle = 0.1 * 4;  // the new key is key 2 behind the padding
  const double x = s.at(Role::k_new, 0, 0, 0, 0), y = s.at(Role::k_new, 0, 0, 0, 1);
  EXPECT_NEAR(s.at(Role::k, 0, 5, 0, 0), x * std::cos(angle) - y * std::sin(angle), 1e-6);
}

// Token by token or all at once: the cache and the results are the same.
TEST(Rotary, appending_in_steps_is_appending_at_once) {
  Sample whole = cache("forward f64 b1 h2/1 q4 k8 d4 causal append rotary_half", 8, 4);
  whole.integers(Role::used_k, {1}, {2}).normal(Role::k, 4).normal(Role::v, 5);
  tables(whole, 8, 2);
  Sample step = cache("forward f64 b1 h2/1 q1 k8 d4 causal append rotary_half", 8, 1);
  step.normal(Role::k, 4).normal(Role::v, 5);
  tables(step, 8, 2);
  whole.run();
  for (int n = 0; n < 4; ++n) {
    step.integers(Role::used_k, {1}, {2 + n});
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < 4; ++d) {
        reference_detail::save(step.args[Role::q], 0, 0, h, d, whole.at(Role::q, 0, n, h, d));
        reference_detail::save(step.args[Role::k_new], 0, 0, 0, d, whole.at(Role::k_new, 0, n, 0, d));
        reference_detail::save(step.args[Role::v_new], 0, 0, 0, d, whole.at(Role::v_new, 0, n, 0, d));
      }
    step.run();
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < 4; ++d)
        EXPECT_NEAR(step.at(Role::out, 0, 0, h, d), whole.at(Role::out, 0, n, h, d), 1e-12);
  }
  EXPECT_EQ(step.values(Role::k), whole.values(Role::k));
}

// Attention uses values as a bf16 cache holds them, although the tensors of this run are f64.
TEST(Rotary, turned_numbers_are_rounded_to_the_dtype_of_the_problem) {
  Sample s = cache("forward bf16 b1 h1 q1 k4 d2 full append rotary", 4, 1);
  s.normal(Role::k, 4).normal(Role::v, 5);
  tables(s, 4, 1);
  s.run();
  const double x = s.at(Role::k, 0, 3, 0, 0);
  EXPECT_EQ(x, double(float(Bf16(float(x)))));
}

}  // namespace
}  // namespace attune
