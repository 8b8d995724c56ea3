// SPDX-License-Identifier: Apache-2.0
// A walk is correct iff its tiles cover every visible pair once, none is superfluous, and its whole tiles hide nothing.
// Tests all small cases, near position 0 and near the largest accepted position.
#include "core/mask.h"

#include <gtest/gtest.h>

#include <vector>

using namespace attune;

namespace {

constexpr int kLenQ = 23, kLenK = 29;

template <class F>
void each_band(F f) {
  for (const int64_t left : {int64_t(0), int64_t(3), int64_t(10), kUnbounded})
    for (const int64_t right : {int64_t(-2), int64_t(0), int64_t(4), kUnbounded})
      for (const int64_t offset : {-40, -9, 0, 5, 40})
        for (const int64_t base : {int64_t(0), kMaxPosition, -kMaxPosition})
          for (const int step : {1, 4}) f(Band{left, right, base + offset, base + step - 1, step});
}

// Expects ordered, disjoint tiles inside [0, length) that cover everything visible; whole tiles contain nothing hidden.
// `visible(n, m)`: whether row n sees column m of the walk.
template <class Walk, class Visible>
void expect_exact(const Walk& walk, Rows rows, int length, Visible visible) {
  std::vector<int> covered(size_t(length), 0), whole(size_t(length), 0);
  int end = 0;
  for (int n = 0; n < walk.tiles(rows); ++n) {
    const Tile t = walk.tile(rows, n);
    ASSERT_TRUE(end <= t.first && t.first <= t.last && t.last <= length);
    end = t.last;
    for (int m = t.first; m < t.last; ++m) ++covered[size_t(m)], whole[size_t(m)] = !t.partial;
  }
  for (int n = rows.first; n < rows.last; ++n)
    for (int m = 0; m < length; ++m) {
      ASSERT_TRUE(!visible(n, m) || covered[size_t(m)]) << n << " sees " << m << ", which is in no tile";
      ASSERT_TRUE(visible(n, m) || !whole[size_t(m)]) << n << " does not see " << m << ", which is in a whole tile";
    }
}

TEST(BandWalk, holds_what_is_visible_and_its_whole_tiles_hide_nothing) {
  each_band([](const Band& band) {
    for (const int tile_q : {1, 4, 7})
      for (const int tile_k : {1, 4, 16, 64})
        for (int first = 0; first < kLenQ; first += tile_q)
          expect_exact(BandWalk{band, kLenK, tile_k}, {first, clamp(first + tile_q, 0, kLenQ)}, kLenK,
                       [&](int i, int j) { return band.visible(i, j); });
  });
}

TEST(BandWalk, first_and_last_key_of_a_row_are_the_keys_it_sees) {
  each_band([](const Band& band) {
    const BandWalk walk{band, kLenK, 4};
    for (int i = 0; i < kLenQ; ++i)
      for (int j = 0; j < kLenK; ++j)
        ASSERT_EQ(walk.first_key(i) <= j && j < walk.last_key(i), band.visible(i, j)) << i << ", " << j;
  });
}

TEST(BandWalk, visits_no_tile_that_one_row_does_not_need) {
  each_band([](const Band& band) {
    if (band.left + band.right < band.k_step) return;  // a row between two keys may see none and still visit a tile
    const BandWalk walk{band, kLenK, 4};
    for (int i = 0; i < kLenQ; ++i)
      for (int n = 0; n < walk.tiles({i, i + 1}); ++n) {
        const Tile t = walk.tile({i, i + 1}, n);
        bool seen = false;
        for (int j = t.first; j < t.last; ++j) seen |= band.visible(i, j);
        // The last tile is partial and may be visited for nothing.
        const bool past_the_end = walk.first_key(i) == kLenK;
        ASSERT_TRUE(seen || past_the_end);
      }
  });
}

TEST(BandWalk, whole_tiles_are_not_called_partial) {
  // Causal, 64 x 64 in tiles of 16: of 10 visited tiles, the 4 on the diagonal are partial.
  const BandWalk walk{band_of({MaskKind::causal}, 64, 64, 0, 0), 64, 16};
  int tiles = 0, partial = 0;
  for (int first = 0; first < 64; first += 16)
    for (int n = 0; n < walk.tiles({first, first + 16}); ++n, ++tiles)
      partial += walk.tile({first, first + 16}, n).partial;
  EXPECT_EQ(tiles, 10);
  EXPECT_EQ(partial, 4);
  EXPECT_FALSE((BandWalk{Band{}, 10, 16}.tile({0, 4}, 0).partial)) << "a ragged end hides nothing";
}

TEST(QueryWalk, holds_what_is_visible_and_its_whole_tiles_hide_nothing) {
  each_band([](const Band& band) {
    for (const int tile_k : {1, 4, 7})
      for (const int tile_q : {1, 4, 16, 64})
        for (int first = 0; first < kLenK; first += tile_k)
          expect_exact(QueryWalk{band, kLenQ, tile_q}, {first, clamp(first + tile_k, 0, kLenK)}, kLenQ,
                       [&](int j, int i) { return band.visible(i, j); });
  });
}

TEST(QueryWalk, first_and_last_query_of_a_key_are_the_queries_that_see_it) {
  each_band([](const Band& band) {
    const QueryWalk walk{band, kLenQ, 4};
    for (int j = 0; j < kLenK; ++j)
      for (int i = 0; i < kLenQ; ++i)
        ASSERT_EQ(walk.first_query(j) <= i && i < walk.last_query(j), band.visible(i, j)) << i << ", " << j;
  });
}

// The tile size of the inner walk is irrelevant: a tile is a block.
TEST(BlockWalk, holds_the_listed_blocks_and_cuts_them_to_the_band) {
  const int32_t begin[] = {1, 4, 4, 6}, column[] = {9, 0, 1, 3, 2, 3, 9};  // the first and last entries are in no row
  const BlockList list{{8, 8, 7}, begin, column};
  const auto listed = [&](int row, int block) {
    for (int n = begin[row]; n < begin[row + 1]; ++n)
      if (column[n] == block) return true;
    return false;
  };
  each_band([&](const Band& band) {
    for (const int tile_q : {2, 8})
      for (int first = 0; first < kLenQ; first += tile_q)
        expect_exact(BlockWalk{{band, kLenK, 5}, list}, {first, clamp(first + tile_q, 0, kLenQ)}, kLenK,
                     [&](int i, int j) { return band.visible(i, j) && listed(i / 8, j / 8); });
  });
}

TEST(BlockWalk, hostile_lists_give_only_tiles_inside_the_keys) {
  const int32_t begin[] = {INT32_MIN, 2, INT32_MAX, 1, -1}, column[] = {INT32_MIN, INT32_MAX, -1};
  const BlockWalk walk{{Band{}, kLenK, 8}, {{4, 8, 3}, begin, column}};
  int tiles = 0;
  EXPECT_EQ(walk.tiles({8, 12}), 0) << "a row that ends before it begins";
  for (int row = 0; row < 4; ++row)
    for (int n = 0; n < walk.tiles({row * 4, row * 4 + 4}); ++n, ++tiles) {
      const Tile t = walk.tile({row * 4, row * 4 + 4}, n);
      EXPECT_TRUE(0 <= t.first && t.first == t.last && t.last <= kLenK);
    }
  EXPECT_EQ(tiles, 3);  // two from row 0, the third from row 1; rows 2 and 3 end before they begin
}

// The alignments, as defined.
constexpr bool causal_sees(Align align, int len_q, int len_k, int i, int j) {
  // Query 0 is at position 9, key 0 at 7.
  return band_of({MaskKind::causal, align}, len_q, len_k, 9, 7).visible(i, j);
}

TEST(Band, alignment_says_where_query_0_stands) {
  EXPECT_TRUE(causal_sees(Align::bottom_right, 3, 5, 2, 4) && !causal_sees(Align::bottom_right, 3, 5, 1, 4));
  EXPECT_TRUE(causal_sees(Align::bottom_right, 5, 3, 2, 0) && !causal_sees(Align::bottom_right, 5, 3, 1, 0));
  EXPECT_TRUE(causal_sees(Align::top_left, 3, 5, 2, 2) && !causal_sees(Align::top_left, 3, 5, 2, 3));
  EXPECT_TRUE(causal_sees(Align::absolute, 3, 5, 0, 2) && !causal_sees(Align::absolute, 3, 5, 0, 3));
}

TEST(Band, window_is_inclusive_and_a_side_may_have_no_limit) {
  const Mask window{.kind = MaskKind::window, .align = Align::top_left, .left = 2, .right = 1};
  const Band band = band_of(window, 9, 9, 0, 0);
  for (int j = 0; j < 9; ++j) EXPECT_EQ(band.visible(4, j), j >= 2 && j <= 5) << j;
  Mask past = window, future = window;
  past.left = kNoLimit, future.right = kNoLimit;
  for (int j = 0; j < 9; ++j) EXPECT_EQ(band_of(past, 9, 9, 0, 0).visible(4, j), j <= 5) << j;
  for (int j = 0; j < 9; ++j) EXPECT_EQ(band_of(future, 9, 9, 0, 0).visible(4, j), j >= 2) << j;
}

TEST(Band, compressed_keys_stand_a_step_apart) {
  const Mask mask{.kind = MaskKind::causal, .k_step = 16, .k_phase = 31};
  const Band band = band_of(mask, 40, 3, 0, 0);
  EXPECT_EQ(band.k_position(2), 63);
  EXPECT_EQ(band.q_position(39), 63) << "bottom-right: the last query on the last key's position";
  EXPECT_FALSE(band.visible(38, 2));
}

TEST(Band, nothing_overflows_at_the_largest_sizes) {
  Mask widest{.kind = MaskKind::causal, .align = Align::top_left, .k_step = kMaxStep, .k_phase = INT32_MAX};
  EXPECT_FALSE(band_of(widest, 1, INT32_MAX, 0, 0).visible(0, INT32_MAX - 1));
  widest.align = Align::absolute;
  const Band far = band_of(widest, INT32_MAX, INT32_MAX, -kMaxPosition, kMaxPosition);
  EXPECT_FALSE(far.visible(0, INT32_MAX - 1));
  EXPECT_EQ((BandWalk{far, INT32_MAX, 64}.last_key(INT32_MAX - 1)), 0);
  const Band near = band_of(widest, INT32_MAX, INT32_MAX, kMaxPosition, -kMaxPosition);
  EXPECT_EQ((BandWalk{near, INT32_MAX, 64}.last_key(0)), int((2 * kMaxPosition - INT32_MAX) / kMaxStep + 1));
  EXPECT_EQ(clamp_position(INT64_MIN), -kMaxPosition);
  EXPECT_EQ(clamp_position(INT64_MAX), kMaxPosition);
  EXPECT_EQ(clamp_position(-5), -5);
}

TEST(Division, rounds_down_and_up_for_every_sign) {
  for (int a = -20; a <= 20; ++a)
    for (int b = 1; b <= 7; ++b) {
      const int64_t down = floor_div(a, b), up = ceil_div(a, b);
      EXPECT_TRUE(down * b <= a && a < (down + 1) * b) << a << " / " << b;
      EXPECT_TRUE((up - 1) * b < a && a <= up * b) << a << " / " << b;
      EXPECT_EQ(round_up(a, b), up * b);
    }
}

}  // namespace
