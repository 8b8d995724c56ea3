// SPDX-License-Identifier: Apache-2.0
// Query tiles from lengths and lists in tensors, compared with the definition of the mask.
#include "attention/tile/query_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr int kTileQ = 128, kTileK = 64;

struct Tiles {
  World world;
  explicit Tiles(std::string_view line) : world(parsed(line).problem, parsed(line).variation) {}
  static Case parsed(std::string_view line) {
    Case c;
    const Status s = parse(line, c);
    EXPECT_TRUE(s.ok()) << s.message;
    return c;
  }
  template <class F>
  void each(F f) const {  // f(sequence, tile)
    const Problem& p = world.problem;
    for (int b = 0; b < p.batch; ++b) {
      const Sequence s = sequence(p, world.args, b);
      for (int head = 0; head < p.heads_q; ++head)
        for (int n = 0; n < query_tiles(s, kTileQ); ++n)
          f(s, query_tile(p, world.args, b, s, head, n, kTileQ, kTileK));
    }
  }
};

bool hidden(const QueryTile& t, int row, int key) {  // the kernels' criterion
  return key >= t.keys || key < t.from + row || key >= t.until + row;
}

TEST(QueryTile, rows_see_what_the_mask_says_and_nothing_seen_lies_outside_of_its_key_tiles) {
  int empty = 0, seen = 0;
  for (const char* line : {"forward bf16 b6 h2/1 q300 k400 d64 causal ragged | seed=2 odd",
                           "forward bf16 b5 h2 q260 k300 d64 full ragged | seed=3 drawn cache used_q",
                           "forward bf16 b4 h2 q150 k290 d64 window70,3 | seed=5 drawn cu_q cache",
                           "forward bf16 b4 h2 q150 k290 d64 window*,-9@top_left | seed=6 drawn cache",
                           "forward bf16 b8 h2 q130 k10 d64 causal ragged | seed=7 drawn",
                           "forward bf16 b3 h2 q300 k500 d64 causal@absolute | seed=2 drawn used_q cache"})
    Tiles(line).each([&](const Sequence& s, const QueryTile& t) {
      const int rows = std::min(kTileQ, t.end - t.row);
      ASSERT_GT(rows, 0) << line;
      EXPECT_EQ(t.row, s.q_first + t.query) << line;
      EXPECT_EQ(t.stand, -s.band.ahead(t.query, 0)) << line;
      EXPECT_LE(t.end, s.q_first + s.len_q) << line;
      EXPECT_GE(t.first, 0);
      EXPECT_LE(t.last * kTileK, std::max(0, s.len_k - 1)) << line;
      int any = 0;
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < s.len_k; ++j) {
          const bool visible = s.band.visible(t.query + r, j);
          any += visible;
          EXPECT_EQ(!hidden(t, r, j), visible) << line << ": query " << t.query + r << " key " << j;
          EXPECT_TRUE(!visible || (t.first <= j / kTileK && j / kTileK <= t.last)) << line << ": key " << j;
        }
      empty += any == 0, seen += any;
    });
  EXPECT_GT(empty, 0);
  EXPECT_GT(seen, 0);
}

TEST(QueryTile, every_row_of_a_sequence_is_in_one_tile) {
  Tiles tiles("forward bf16 b5 h4/2 q300 k300 d64 full ragged | seed=3 drawn used_q");
  std::vector<int> taken(size_t(tiles.world.args[Role::q].extent.seq) * 4);
  tiles.each([&](const Sequence&, const QueryTile& t) {
    EXPECT_EQ(t.k_head, t.head / 2);
    for (int i = t.row; i < std::min(t.end, t.row + kTileQ); ++i) ++taken[size_t(i) * 4 + size_t(t.head)];
  });
  std::vector<int> wanted(taken.size());
  for (int b = 0; b < 5; ++b) {
    const Sequence s = sequence(tiles.world.problem, tiles.world.args, b);
    for (int i = s.q_first * 4; i < (s.q_first + s.len_q) * 4; ++i) wanted[size_t(i)] = 1;
  }
  EXPECT_EQ(taken, wanted);
}

TEST(QueryTile, walks_the_pieces_of_its_own_row_of_a_list) {
  const Tiles tiles("forward bf16 b2 h2 q300 k400 d64 causal blocks128x128x9 | seed=3");
  const Args& a = tiles.world.args;
  int empty = 0;
  tiles.each([&](const Sequence&, const QueryTile& t) {
    const int32_t* begin = a.row<const int32_t>(Role::block_begin, t.sequence, 0, t.head);
    const BlockList list{tiles.world.problem.mask.blocks, begin, a.row<const int32_t>(Role::block_column)};
    const int row = t.query / 128, count = list.count(row);
    empty += count == 0;
    EXPECT_EQ(t.keys, count ? 400 : 0) << "a row without blocks sees nothing";
    EXPECT_EQ(t.last + 1, count ? 2 * count : 1);
    EXPECT_EQ(t.column, list.begin[row]);
  });
  EXPECT_GT(empty, 0);
}

TEST(QueryTile, has_two_lists_where_blocks_are_half_a_tile_of_queries) {
  int empty = 0, uneven = 0, outside = 0;
  for (const char* line : {"forward bf16 b2 h2 q300 k400 d64 causal blocks64x64x9 | seed=3",
                           "forward bf16 b2 h2 q300 k400 d64 full blocks64x128x99 | seed=2 drawn used_q",
                           "forward bf16 b3 h2 q140 k260 d64 full blocks64x64x60 ragged | seed=5 drawn"}) {
    const Tiles tiles(line);
    const Args& a = tiles.world.args;
    const Blocks size = tiles.world.problem.mask.blocks;
    tiles.each([&](const Sequence& s, const QueryTile& t) {
      const int32_t* begin = a.row<const int32_t>(Role::block_begin, t.sequence, 0, t.head);
      const int row = t.query / 64, pieces = size.k / kTileK;
      const bool alone = t.query + 64 >= s.len_q;  // the second row of blocks lies behind the last query
      const int of_first = begin[row + 1] - begin[row], of_second = alone ? 0 : begin[row + 2] - begin[row + 1];
      EXPECT_EQ(t.first, of_first * pieces) << line;
      EXPECT_EQ(t.column, begin[row]) << line;
      EXPECT_EQ(t.last + 1, std::max(1, (of_first + of_second) * pieces)) << line;
      EXPECT_EQ(t.keys, of_first + of_second ? s.len_k : 0) << line;
      empty += of_first + of_second == 0, uneven += !of_first != !of_second, outside += alone;
    });
  }
  EXPECT_GT(empty, 0);
  EXPECT_GT(uneven, 0);
  EXPECT_GT(outside, 0);
}

TEST(QueryTile, is_the_same_from_few_numbers_where_all_sequences_have_the_same_lengths) {
  for (const char* line : {"forward bf16 b2 h4/2 q300 k400 d64 causal blocks128x128x9 | seed=3",
                           "forward bf16 b3 h2 q300 k400 d64 full blocks64x64x40 | seed=2 bhsd",
                           "forward bf16 b1 h3/1 q600 k200 d64 window70,9 blocks64x128x20 | seed=4",
                           "forward bf16 b2 h2 q130 k300 d64 window*,-9@top_left blocks128x64x7 | seed=5"}) {
    const Tiles tiles(line);
    const ListTiles all = list_tiles(tiles.world.problem, tiles.world.args, kTileQ, kTileK);
    int n = 0;
    tiles.each([&](const Sequence&, const QueryTile& t) {
      const QueryTile same = all.tile(n++);
      EXPECT_EQ(std::memcmp(&same, &t, sizeof t), 0) << line << ": tile " << n - 1;
    });
    EXPECT_EQ(n, all.count) << line;
  }
}

TEST(QueryTile, reads_no_entry_behind_a_list_whatever_its_ends_say) {
  Problem p;
  ASSERT_TRUE(parse("forward bf16 b1 h1 q128 k512 d64 full blocks64x64x8", p).ok());
  Args a;
  a[Role::q].extent = {1, 128, 1, 64}, a[Role::k].extent = {1, 512, 1, 64};
  for (std::vector<int32_t> begin : {std::vector<int32_t>{8, 0, 8}, {4, 1, 8}, {-5, 70, 9}, {3, 8, -1}}) {
    a[Role::block_begin] = {.data = begin.data(), .dtype = DType::i32, .extent = {1, 1, 1, 3}};
    const QueryTile t = query_tile(p, a, 0, sequence(p, a, 0), 0, 0, kTileQ, kTileK);
    EXPECT_GE(t.column, 0);
    EXPECT_GE(t.first, 0);
    EXPECT_GE(t.last, 0);
    EXPECT_TRUE(t.keys == 0 || t.column + t.last < 8) << begin[0] << " " << begin[1] << " " << begin[2];
  }
}

TEST(QueryTile, keeps_positions_of_any_size_apart) {
  Problem p;
  ASSERT_TRUE(parse("forward bf16 b1 h1 q8 k8 d64 window2000000000,0@absolute", p).ok());
  Args a;
  std::vector<int64_t> at{int64_t(1) << 40, 0};
  a[Role::q].extent = a[Role::k].extent = {1, 8, 1, 64};
  a[Role::positions] = {.data = at.data(), .dtype = DType::i64, .extent = {1, 1, 1, 2}};
  const QueryTile t = query_tile(p, a, 0, sequence(p, a, 0), 0, 0, kTileQ, kTileK);
  for (int j = 0; j < 8; ++j) EXPECT_TRUE(hidden(t, 0, j)) << "all keys are far behind the window";
  EXPECT_EQ(t.first, 0);
  EXPECT_EQ(t.last, 0);
}

}  // namespace
}  // namespace attune
