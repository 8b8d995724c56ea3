// SPDX-License-Identifier: Apache-2.0
// Key tiles from lengths in tensors, compared with the definition of the mask.
#include "attention/tile/key_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "verify/cases/cases.h"

namespace attune {
namespace {

constexpr int kTileQ = 64, kTileK = 128;

constexpr const char* kLines[] = {"backward bf16 b1 h1 q256 k256 d64 causal",  // ends at a tile boundary
                                  "backward bf16 b6 h2/1 q300 k400 d64 causal ragged | seed=2 odd",
                                  "backward bf16 b5 h2 q260 k300 d64 full ragged | seed=3 drawn cache used_q",
                                  "backward bf16 b4 h2 q150 k290 d64 window70,3 | seed=5 drawn cu_q cache",
                                  "backward bf16 b4 h2 q150 k290 d64 window*,-9@top_left | seed=6 drawn cache",
                                  "backward bf16 b4 h2 q500 k490 d64 window3,-2 | seed=6 drawn cache",
                                  "backward bf16 b2 h2 q300 k700 d64 window9,-300 | seed=6 drawn cache",
                                  "backward bf16 b8 h2 q130 k10 d64 causal ragged | seed=7 drawn",
                                  "backward bf16 b3 h2 q300 k500 d64 causal@absolute | seed=2 drawn used_q cache"};

template <class F>
void each(std::string_view line, F f) {  // f(sequence, its key tiles)
  Case c;
  const Status s = parse(line, c);
  ASSERT_TRUE(s.ok()) << s.message;
  const World world(c.problem, c.variation);
  for (int b = 0; b < c.problem.batch; ++b) {
    const Sequence seq = sequence(world.problem, world.args, b);
    std::vector<KeyTile> tiles;
    for (int n = 0; n < ceil_div(c.problem.len_k, kTileK); ++n) {
      tiles.push_back(key_tile_of(seq, b));
      cut_key_tile(tiles.back(), n, kTileQ, kTileK, kTileQ);
    }
    f(seq, tiles);
  }
}

std::vector<int> queries(const KeyTile& t) {
  std::vector<int> out;
  if (t.tiles == 0) return out;
  for (int query = t.start; query != t.stop; query += kTileQ) out.push_back(query);
  return out;
}

TEST(KeyTile, keys_are_seen_as_the_mask_says_and_by_no_query_outside_of_its_query_tiles) {
  int empty = 0, seen = 0;
  for (const char* line : kLines)
    each(line, [&](const Sequence& s, const std::vector<KeyTile>& tiles) {
      for (const KeyTile& t : tiles) {
        const std::vector<int> of = queries(t);
        EXPECT_EQ(int(of.size()), t.tiles) << line;
        for (const int query : of) EXPECT_TRUE(query % kTileQ == 0 && query >= 0 && query < s.len_q) << line;
        for (int j = t.key; j < std::min(t.key + kTileK, s.len_k); ++j)
          for (int i = 0; i < s.len_q; ++i) {
            const bool visible = s.band.visible(i, j);
            EXPECT_EQ(i + t.low <= j && j <= i + t.high, visible) << line << ": query " << i << " key " << j;
            const int64_t had = std::count(of.begin(), of.end(), i / kTileQ * kTileQ);
            EXPECT_TRUE(!visible || had == 1) << line << ": query " << i;
            seen += visible;
          }
        empty += t.tiles == 0;
      }
    });
  EXPECT_GT(empty, 0);
  EXPECT_GT(seen, 0);
}

// A deterministic dQ add waits for all key tiles behind it: a count that is one too high would deadlock.
TEST(KeyTile, knows_how_many_tiles_behind_it_have_a_query_tile) {
  int most = 0;
  for (const char* line : kLines)
    each(line, [&](const Sequence&, const std::vector<KeyTile>& tiles) {
      std::map<int, int> had;
      for (size_t n = tiles.size(); n-- > 0;)
        for (const int query : queries(tiles[n])) {
          EXPECT_EQ(key_tiles_behind(tiles[n], query, kTileQ, kTileK), had[query])
              << line << ": key " << tiles[n].key << " query " << query;
          EXPECT_EQ(is_first_to_add(tiles[n], query, kTileQ, kTileK), had[query] == 0) << line;
          most = std::max(most, had[query]++);
        }
    });
  EXPECT_GT(most, 2);
}

TEST(KeyTile, query_splits_have_each_query_tile_once) {
  for (const int tiles : {1, 2, 7, 64})
    for (int splits = 1; splits <= std::min(tiles, 16); ++splits) {
      int next = 3 * kTileQ;
      for (int split = 0; split < splits; ++split) {
        KeyTile t{};
        t.start = 3 * kTileQ, t.tiles = tiles, t.stop = t.start + tiles * kTileQ;
        cut_query_split(t, split, splits, kTileQ);
        EXPECT_EQ(t.start, next) << tiles << " " << splits;
        EXPECT_GE(t.tiles, tiles / splits) << tiles << " " << splits;
        EXPECT_LE(t.tiles, ceil_div(tiles, splits)) << tiles << " " << splits;
        next = t.stop;
      }
      EXPECT_EQ(next, (3 + tiles) * kTileQ) << tiles << " " << splits;
    }
}

TEST(KeyTile, knows_whether_every_query_sees_a_key) {
  int all = 0, some = 0;
  for (const char* line : kLines)
    each(line, [&](const Sequence& s, const std::vector<KeyTile>& tiles) {
      if (s.len_q == 0) return;
      int seeing = 0;
      for (int i = 0; i < s.len_q; ++i) {
        bool sees = false;
        for (int j = 0; j < s.len_k; ++j) sees |= s.band.visible(i, j);
        seeing += sees;
      }
      EXPECT_EQ(every_query_sees(tiles[0]), seeing == s.len_q) << line << ": " << seeing << " of " << s.len_q;
      ++(seeing == s.len_q ? all : some);
    });
  EXPECT_GT(all, 5);
  EXPECT_GT(some, 5);
}

}  // namespace
}  // namespace attune
