// SPDX-License-Identifier: Apache-2.0
// Stream-K: the key tiles of the last query tiles, divided evenly among CTAs.
#include "attention/tile/stream_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace attune {
namespace {

StreamK stream_k(int tiles, int steps, int blocks) { return {tiles, (tiles * steps + blocks - 1) / blocks, steps}; }

TEST(StreamK, every_key_tile_of_every_query_tile_has_one_block) {
  for (const int blocks : {2, 78, 132})
    for (const int tiles : {1, 2, blocks / 2, blocks - 1})
      for (const int steps : {1, 13, 128}) {
        const StreamK s = stream_k(tiles, steps, blocks);
        std::vector<int> seen(size_t(tiles) * size_t(steps));
        std::set<int> places;
        for (int b = 0; b < blocks; ++b) {
          int mine = 0;
          for (int number = 0; number < 3; ++number) {
            const int tile = s.tile(b, number);
            if (tile == tiles) break;
            ASSERT_LT(number, 2);
            const auto [first, last] = s.key_tiles(b, tile);
            ASSERT_TRUE(0 <= first && first <= last && last < steps) << tiles << " x " << steps << ", block " << b;
            for (int j = first; j <= last; ++j) ++seen[size_t(tile) * size_t(steps) + size_t(j)];
            mine += last - first + 1;
            EXPECT_TRUE(places.insert(StreamK::place(b, tile)).second);
            EXPECT_LT(StreamK::place(b, tile), blocks + tiles);
            EXPECT_TRUE(s.first_block(tile) <= b && b <= s.last_block(tile));
          }
          EXPECT_LE(mine, s.share);
        }
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; })) << tiles << " x " << steps;
        size_t parts = 0;
        for (int t = 0; t < tiles; ++t) parts += size_t(s.last_block(t) - s.first_block(t) + 1);
        EXPECT_EQ(parts, places.size());  // the combine reads exactly the parts that were written
      }
}

TEST(StreamK, a_block_beyond_the_last_key_tile_has_none) {
  const StreamK s = stream_k(3, 10, 20);  // two key tiles per CTA: fifteen CTAs
  EXPECT_EQ(s.tile(14, 0), 2);
  EXPECT_EQ(s.tile(15, 0), 3);
  EXPECT_EQ(s.tile(19, 0), 3);
}

}  // namespace
}  // namespace attune
