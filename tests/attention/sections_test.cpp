// Which heads the blocks of sm90_backward go through together, the longest blocks of them first; which blocks stay, and
// how their last tiles are divided.
#include <gtest/gtest.h>

#include "attention/limits.sm90.h"
#include "core/mask.h"

namespace attune::sm90 {
namespace {

constexpr int kUnits = 132;

TEST(Sections, as_many_heads_as_stay_in_the_cache) {
  EXPECT_EQ(section_heads(1 << 20), 32);
  EXPECT_EQ(section_heads(20 << 20), 1);
  EXPECT_EQ(section_heads(80 << 20), 1);
  EXPECT_EQ(section_heads(1), 64);
}

// One behind the other they leave multiprocessors idle at the end: the last section begins with its longest block.
TEST(Sections, that_do_not_fill_the_gpu_are_joined) {
  EXPECT_EQ(joined_section(2, 16, 8, kUnits), 8);
  EXPECT_EQ(joined_section(1, 32, 8, kUnits), 8);
  EXPECT_EQ(joined_section(1, 64, 8, kUnits), 8);
  EXPECT_EQ(joined_section(1, 128, 8, kUnits), 8);
  EXPECT_EQ(joined_section(64, 1, 8, kUnits), 64) << "all heads are one already";
}

TEST(Sections, that_fill_the_gpu_or_are_many_stay_as_the_cache_has_them) {
  EXPECT_EQ(joined_section(8, 32, 16, kUnits), 8);
  EXPECT_EQ(joined_section(2, 66, 8, kUnits), 2);
  EXPECT_EQ(joined_section(2, 65, 8, kUnits), 8);
  EXPECT_EQ(joined_section(1, 256, 8, kUnits), 1);
  EXPECT_EQ(joined_section(1, 32, 33, kUnits), 33);
  EXPECT_EQ(joined_section(1, 32, 34, kUnits), 1) << "more than eight tiles a multiprocessor";
}

TEST(Sections, of_a_backward_follow_from_how_its_blocks_differ) {
  EXPECT_EQ(section_of({.alike = true, .in_order = false}, 1 << 20, 16, 8, kUnits), 1);
  EXPECT_EQ(section_of({.alike = false, .in_order = false}, 16 << 20, 16, 8, kUnits), 8);
  EXPECT_EQ(section_of({.alike = true, .in_order = true}, 4 << 20, 16, 8, kUnits), 8);
  EXPECT_EQ(section_of({.alike = false, .in_order = true}, 1 << 20, 16, 64, kUnits), kSectionInOrder);
}

// B x S = 16k, H x D = 2048: rows that see a key are S, or half of it with a diagonal.
TEST(Staying, is_for_tiles_of_keys_that_few_rows_see) {
  for (const double rows : {1., 256., 513., 1024., 2048., 4096., 16384., 32768.}) {
    const auto stays = [&](KeyWalk walk) {
      walk.rows = rows, walk.tiles = 2048;
      return may_stay(walk, kUnits);
    };
    EXPECT_EQ(stays({}), rows <= 2048) << rows;
    EXPECT_EQ(stays({.prepares = true}), rows <= 16384) << rows;
    EXPECT_EQ(stays({.turned = true}), rows <= 16384) << rows;
    EXPECT_EQ(stays({.in_order = true}), rows <= 513) << rows;
  }
}
TEST(Staying, is_not_for_as_many_tiles_as_multiprocessors) {
  EXPECT_FALSE(may_stay({.rows = 256, .tiles = kUnits}, kUnits));
  EXPECT_TRUE(may_stay({.rows = 256, .tiles = kUnits + 1}, kUnits));
  EXPECT_TRUE(may_stay({.rows = 256, .tiles = kUnits, .pieced = true}, kUnits));
}

TEST(Pieced, the_last_wave_of_tiles_takes_less_time_and_bounded_memory) {
  for (const int64_t tiles : {1, 12, 64, 96, 133, 136, 200, 263, 264, 265, 2048, 4096})
    for (const int steps : {1, 4, 13, 26, 64, 205}) {
      const Pieced d = pieced(tiles, steps, 1, kUnits);
      if (d.pieces == 1) {
        EXPECT_EQ(d.whole, tiles);
        continue;
      }
      const int64_t rest = tiles - d.whole;
      EXPECT_EQ(d.whole % kUnits, 0);
      EXPECT_LT(rest, kUnits);
      EXPECT_LE(d.pieces, steps) << "each has a step";
      EXPECT_LE(rest * d.pieces, 2 * kUnits);
      EXPECT_LT(ceil_div(rest * d.pieces, kUnits) * ceil_div(steps, d.pieces), steps) << tiles << " " << steps;
    }
  EXPECT_EQ(pieced(4096, 64, 1, kUnits).pieces, 9) << "four tiles for 132 multiprocessors";
  EXPECT_EQ(pieced(2048, 103, 1, kUnits).pieces, 3) << "68";
  EXPECT_EQ(pieced(64, 26, 1, kUnits).pieces, 2) << "fewer than multiprocessors";
  EXPECT_EQ(pieced(96, 26, 1, kUnits).pieces, 1) << "two waves of halves";
  EXPECT_EQ(pieced(32, 8, 1, kUnits).pieces, 3);
  EXPECT_EQ(pieced(64, 8, 1, kUnits).pieces, 1) << "half a step saved";
  EXPECT_EQ(pieced(4096, 8, 1, kUnits).pieces, 1) << "one of 256 steps saved";
  EXPECT_EQ(pieced(264, 64, 1, kUnits).pieces, 1) << "no last wave";
  EXPECT_EQ(pieced(300, 8, 4, kUnits).pieces, 3) << "36, of 32 steps each";
}
// Block n has tile n first: of sections one after the other, within which tiles go through all heads.
TEST(Preparing, heads_of_first_tiles_are_ready_before) {
  for (const int section : {1, 2, 3, 16, 64})
    for (const int64_t tiles : {1, 2, 3, 11, 16, 100, 131, 132, 133, 1000}) {
      int64_t last = 0;
      for (int64_t block = 0; block < kUnits; ++block)
        last = std::max(last, block / (section * tiles) * section + block % (section * tiles) % section);
      EXPECT_LT(last, heads_before(section, tiles, kUnits)) << section << " " << tiles;
    }
  EXPECT_EQ(heads_before(1, 16, kUnits), 18);
  EXPECT_EQ(heads_before(16, 16, kUnits), 32);
}

}  // namespace
}  // namespace attune::sm90
