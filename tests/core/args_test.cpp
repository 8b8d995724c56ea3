// SPDX-License-Identifier: Apache-2.0
// Where the rows of a sequence lie, for every key source. No value of any integer tensor, however hostile, leads
// outside the buffers.
#include "core/args.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

using namespace attune;

namespace {

// Arguments with integer tensors; q, k and v have a shape and a shared address, and are never read.
struct Given {
  Problem p{};
  Args a{};
  std::deque<std::vector<unsigned char>> memory{};

  explicit Given(const std::string& line, Extents q, Extents k) {
    const Status s = parse(line, p);
    EXPECT_TRUE(s.ok()) << s.message;
    shape(Role::q, q), shape(Role::k, k), shape(Role::v, k);
  }
  void shape(Role r, Extents e) {
    static char nothing;
    const int64_t head = e.dim, seq = head * e.head;
    a[r] = {.data = &nothing, .dtype = p.dtype.kv, .extent = e, .stride = {seq * e.seq, seq, head}};
  }
  template <class Int = int32_t>
  Given& integers(Role r, Extents e, const std::vector<int64_t>& values) {
    Int* at = reinterpret_cast<Int*>(memory.emplace_back(values.size() * sizeof(Int)).data());
    for (size_t n = 0; n < values.size(); ++n) at[n] = Int(values[n]);
    const int64_t head = e.dim, seq = head * e.head;
    const DType dtype = sizeof(Int) == 8 ? DType::i64 : DType::i32;
    a[r] = {.data = at, .dtype = dtype, .extent = e, .stride = {seq * e.seq, seq, head}};
    return *this;
  }
};

TEST(Sequence, without_integer_tensors_is_the_whole_row_of_the_batch) {
  const Given g("forward f32 b3 h2/1 q8 k16 d8 causal", {3, 7, 2, 8}, {3, 15, 1, 8});
  const Sequence s = sequence(g.p, g.a, 2);
  EXPECT_TRUE(s.q_batch == 2 && s.k_batch == 2 && s.q_first == 0 && s.k_first == 0 && s.len_q == 7 && s.len_k == 15);
  EXPECT_EQ(s.band.q_position(6), s.band.k_position(14)) << "aligned by the lengths that are there, not by the bounds";
}

TEST(Sequence, ragged_begins_where_cu_says) {
  Given g("forward f32 b2 h2/1 q8 k16 d8 causal ragged", {1, 9, 2, 8}, {1, 20, 1, 8});
  g.integers(Role::cu_q, {1, 1, 1, 3}, {1, 4, 9}).integers(Role::cu_k, {1, 1, 1, 3}, {2, 12, 20});
  const Sequence s = sequence(g.p, g.a, 1);
  EXPECT_TRUE(s.q_batch == 0 && s.k_batch == 0 && s.q_first == 4 && s.k_first == 12 && s.len_q == 5 && s.len_k == 8);
  g.integers(Role::used_q, {2}, {1, 2}).integers(Role::used_k, {2}, {1, 7}).integers(Role::left_pad, {2}, {0, 3});
  const Sequence part = sequence(g.p, g.a, 1);
  EXPECT_TRUE(part.q_first == 4 && part.k_first == 15 && part.len_q == 2 && part.len_k == 4);
}

TEST(Sequence, cache_has_an_index_padding_and_used_keys) {
  Given g("forward f32 b2 h2/1 q8 k16 d8 causal", {1, 9, 2, 8}, {5, 32, 1, 8});
  g.integers(Role::cu_q, {1, 1, 1, 3}, {0, 4, 9}).integers(Role::cache_index, {2}, {4, 3});
  g.integers(Role::used_k, {2}, {9, 15}).integers(Role::left_pad, {2}, {0, 5});
  const Sequence s = sequence(g.p, g.a, 1);
  EXPECT_TRUE(s.q_batch == 0 && s.q_first == 4 && s.k_batch == 3 && s.k_first == 5 && s.len_k == 10);
  EXPECT_EQ(sequence(g.p, g.a, 0).k_batch, 4);
  g.integers(Role::left_pad, {2}, {10, 0});
  EXPECT_TRUE(sequence(g.p, g.a, 0).k_first == 9 && sequence(g.p, g.a, 0).len_k == 0) << "padding beyond the used keys";
}

TEST(Sequence, appended_keys_come_behind_the_used_ones) {
  Given g("forward f32 b1 h2/1 q2 k16 d8 causal append", {1, 2, 2, 8}, {1, 16, 1, 8});
  g.shape(Role::k_new, {1, 2, 1, 8});
  g.integers(Role::used_k, {1}, {7});
  EXPECT_EQ(sequence(g.p, g.a, 0).len_k, 9);
  g.integers(Role::used_k, {1}, {15});
  EXPECT_EQ(sequence(g.p, g.a, 0).len_k, 16) << "a cache that would overflow is full";
}

TEST(Sequence, absolute_positions_are_read_and_bounded) {
  Given g("forward f32 b2 h2/1 q2 k16 d8 causal@absolute", {2, 2, 2, 8}, {2, 16, 1, 8});
  g.integers<int64_t>(Role::positions, {2, 1, 1, 2}, {5, 6, int64_t(1) << 40, -7});
  EXPECT_EQ(sequence(g.p, g.a, 1).band.q_position(1), (int64_t(1) << 40) + 1);
  EXPECT_EQ(sequence(g.p, g.a, 1).band.k_position(2), -5);
  g.integers<int64_t>(Role::positions, {2, 1, 1, 2}, {INT64_MAX, INT64_MIN, INT64_MIN, INT64_MAX});
  EXPECT_EQ(sequence(g.p, g.a, 0).band.q_first, kMaxPosition);
  EXPECT_EQ(sequence(g.p, g.a, 1).band.q_first, -kMaxPosition);
  EXPECT_EQ(sequence(g.p, g.a, 1).band.k_first, kMaxPosition);
}

TEST(PagedRows, finds_a_key_through_the_table) {
  Given g("forward f32 b2 h2/2 q2 k16 d8 causal paged4", {2, 2, 2, 8}, {6, 4, 2, 8});
  g.integers(Role::page_table, {2, 1, 1, 4}, {0, 0, 0, 0, 5, 2, 3, 1}).integers(Role::left_pad, {2}, {0, 3});
  const Sequence s = sequence(g.p, g.a, 1);
  EXPECT_EQ(s.len_k, 13);
  const PagedRows<float> rows(g.p, g.a, Role::k, s, 1, 1);
  const float* pool = static_cast<const float*>(g.a[Role::k].data);
  EXPECT_EQ(rows.row(0) - pool, ((5 * 4 + 3) * 2 + 1) * 8) << "behind 3 of padding: page 5, slot 3, head 1";
  EXPECT_EQ(rows.row(1) - pool, ((2 * 4 + 0) * 2 + 1) * 8);
}

TEST(LinearRows, begin_behind_the_padding_of_their_cache_row) {
  Given g("forward f32 b1 h2/2 q2 k16 d8 causal", {1, 2, 2, 8}, {3, 16, 2, 8});
  g.integers(Role::left_pad, {1}, {5}).integers(Role::cache_index, {1}, {2});
  const LinearRows<float> rows(g.p, g.a, Role::k, sequence(g.p, g.a, 0), 0, 1);
  EXPECT_EQ(rows.row(4) - static_cast<const float*>(g.a[Role::k].data), ((2 * 16 + 9) * 2 + 1) * 8);
}

struct Hostile {
  std::mt19937 random;
  std::vector<int64_t> operator()(size_t count) {
    std::vector<int64_t> all(count);
    for (int64_t& x : all) {
      const int64_t extreme[] = {INT32_MIN, INT32_MIN + 1, -1, 0, 1, INT32_MAX - 1, INT32_MAX};
      const unsigned kind = random() % 3;
      x = kind == 0 ? extreme[random() % 7] : kind == 1 ? int64_t(random() % 40) : int64_t(int32_t(random()));
    }
    return all;
  }
};

TEST(Sequence, hostile_integers_never_lead_outside) {
  Hostile draw{std::mt19937(1)};
  const char* sources[] = {"", " ragged", " paged4", " append", " append paged4"};
  for (int n = 0; n < 50000; ++n) {
    const std::string source = sources[draw.random() % 5];
    const bool ragged = source == " ragged", paged = source.ends_with("paged4");
    const bool packed = ragged || draw.random() % 2;
    const Extents q = packed ? Extents{1, 13, 2, 8} : Extents{3, 8, 2, 8};
    const Extents k = paged ? Extents{5, 4, 1, 8} : ragged ? Extents{1, 29, 1, 8} : Extents{4, 20, 1, 8};
    Given g("forward f32 b3 h2/1 q8 k16 d8 causal@absolute" + source, q, k);
    if (packed) g.integers(Role::cu_q, {1, 1, 1, 4}, draw(4));
    if (ragged) g.integers(Role::cu_k, {1, 1, 1, 4}, draw(4));
    if (paged) g.integers(Role::page_table, {3, 1, 1, 6}, draw(18));
    if (!ragged && !paged && draw.random() % 2) g.integers(Role::cache_index, {3}, draw(3));
    for (const Role r : {Role::used_q, Role::used_k, Role::left_pad})
      if (draw.random() % 2) g.integers(r, {3}, draw(3));
    if (g.p.has(Option::append)) g.shape(Role::k_new, {3, int(1 + draw.random() % 30), 1, 8});
    std::vector<int64_t> positions = draw(6);
    for (int64_t& x : positions) x = int64_t(uint64_t(x) << 32);
    g.integers<int64_t>(Role::positions, {3, 1, 1, 2}, positions);

    for (int b = 0; b < 3; ++b) {
      const Sequence s = sequence(g.p, g.a, b);
      const int room = paged ? 24 : k.seq;
      ASSERT_TRUE(0 <= s.q_batch && s.q_batch < q.batch && 0 <= s.len_q && s.len_q <= 8);
      ASSERT_TRUE(0 <= s.q_first && s.q_first + s.len_q <= q.seq) << source;
      ASSERT_TRUE(0 <= s.k_batch && (paged || s.k_batch < k.batch) && 0 <= s.len_k && s.len_k <= 16);
      ASSERT_TRUE(0 <= s.k_first && s.k_first + s.len_k <= room) << source;
      const BandWalk walk{s.band, s.len_k, 4};
      for (int i = 0; i < s.len_q; ++i) ASSERT_TRUE(0 <= walk.first_key(i) && walk.last_key(i) <= s.len_k);
      if (!paged) continue;
      const PagedRows<float> rows(g.p, g.a, Role::k, s, b, 0);
      for (int j = 0; j < s.len_k; ++j) {
        const int64_t at = rows.row(j) - rows.pool.data;
        ASSERT_TRUE(0 <= at && at <= (5 * 4 - 1) * 8) << at;
      }
    }
  }
}

TEST(Args, roles_are_found_and_what_is_not_given_is_null) {
  Args a;
  float x[12] = {};
  a[Role::dv] = {.data = x, .dtype = DType::f32, .extent = {1, 2, 3, 2}, .stride = {12, 6, 2}};
  EXPECT_TRUE(a.given(Role::dv) && !a.given(Role::dk));
  EXPECT_EQ(a.row<float>(Role::dv, 0, 1, 2), x + 10);
  EXPECT_EQ(a.row<float>(Role::dk, 0, 1, 2), nullptr);
  EXPECT_EQ(a.integer(Role::used_k, 5, 42), 42);
  EXPECT_EQ(int(variant_tensor(kVariantTensors)), int(d_variant_tensor(0)));
  EXPECT_EQ(int(d_variant_tensor(kVariantTensors)), int(Role::count));
}

}  // namespace
