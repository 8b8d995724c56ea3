// SPDX-License-Identifier: Apache-2.0
// How sm90_backward groups heads into sections, longest CTAs first; which problems get persistent CTAs, and how their
// last tiles are split.
#include <gtest/gtest.h>

#include "attention/sm90/schedule.h"
#include "core/mask.h"

namespace attune::sm90 {
namespace {

constexpr int kSms = 132;

TEST(Sections, as_many_heads_as_stay_in_the_cache) {
  EXPECT_EQ(section_heads(1 << 20), 32);
  EXPECT_EQ(section_heads(20 << 20), 1);
  EXPECT_EQ(section_heads(80 << 20), 1);
  EXPECT_EQ(section_heads(1), 64);
}

// Run one after another, such sections leave SMs idle at the end, because the last section starts with its longest CTA.
TEST(Sections, that_do_not_fill_the_gpu_are_joined) {
  EXPECT_EQ(joined_section(8 << 20, 16, 8, kSms), 8);
  EXPECT_EQ(joined_section(16 << 20, 32, 8, kSms), 8);
  EXPECT_EQ(joined_section(16 << 20, 64, 8, kSms), 8);
  EXPECT_EQ(joined_section(17 << 20, 128, 8, kSms), 8) << "the cache does not hold it";
  EXPECT_EQ(joined_section(1, 1, 8, kSms), 64) << "all heads are one already";
}
// b1 d128: h12 and h16 at length 4096 took 254 and 318 us on an H200 as one section, and 291 and 311 us as several.
TEST(Sections, that_the_cache_holds_and_that_nearly_fill_the_gpu_are_joined_where_tiles_are_fewer) {
  EXPECT_EQ(joined_section(4 << 20, 32, 12, kSms), 12);
  EXPECT_EQ(joined_section(4 << 20, 32, 16, kSms), 4);
  EXPECT_EQ(joined_section(16 << 20, 128, 3, kSms), 3);
  EXPECT_EQ(joined_section(16 << 20, 128, 4, kSms), 1);
}

TEST(Sections, that_fill_the_gpu_or_are_many_stay_as_the_cache_has_them) {
  EXPECT_EQ(joined_section(2 << 20, 32, 16, kSms), 8);
  EXPECT_EQ(joined_section(8 << 20, 66, 4, kSms), 2);
  EXPECT_EQ(joined_section(8 << 20, 65, 4, kSms), 4);
  EXPECT_EQ(joined_section(16 << 20, 256, 3, kSms), 1);
  EXPECT_EQ(joined_section(16 << 20, 32, 33, kSms), 33);
  EXPECT_EQ(joined_section(16 << 20, 32, 34, kSms), 1) << "more than eight tiles per SM";
}

TEST(Sections, of_a_backward_follow_from_how_its_blocks_differ) {
  EXPECT_EQ(section_of({.alike = true, .deterministic = false}, 1 << 20, 16, 8, kSms), 1);
  EXPECT_EQ(section_of({.alike = false, .deterministic = false}, 16 << 20, 16, 8, kSms), 8);
  EXPECT_EQ(section_of({.alike = false, .deterministic = false}, 1 << 20, 16, 64, kSms), 16);
  EXPECT_EQ(section_of({.alike = true, .deterministic = true}, 4 << 20, 16, 8, kSms), 8);
  EXPECT_EQ(section_of({.alike = false, .deterministic = true}, 1 << 20, 16, 64, kSms), kSectionDeterministic);
}

// B x S = 16k, H x D = 2048: S rows see a key, or half of them with a causal mask.
TEST(Staying, is_for_tiles_of_keys_that_few_rows_see) {
  for (const double rows : {1., 256., 513., 1024., 2048., 4096., 16384., 32768.}) {
    const auto persistent = [&](KeyWalk walk) {
      walk.rows = rows, walk.tiles = 2048;
      return may_persist(walk, kSms);
    };
    EXPECT_EQ(persistent({}), rows <= 2048) << rows;
    EXPECT_EQ(persistent({.prepares = true}), rows <= 16384) << rows;
    EXPECT_EQ(persistent({.transposed = true}), rows <= 16384) << rows;
    EXPECT_EQ(persistent({.deterministic = true}), rows <= 513) << rows;
    EXPECT_EQ(persistent({.deterministic = true, .narrow = true}), rows <= 16384) << rows;
  }
}
TEST(Staying, is_not_for_as_many_tiles_as_sms) {
  EXPECT_FALSE(may_persist({.rows = 256, .tiles = kSms}, kSms));
  EXPECT_TRUE(may_persist({.rows = 256, .tiles = kSms + 1}, kSms));
  EXPECT_TRUE(may_persist({.rows = 256, .tiles = kSms, .query_splits = true}, kSms));
}

int alike(int64_t tiles, int query_tiles, int group = 1, bool narrow = false) {
  return query_splits_alike({.tiles = tiles, .heads_total = 1, .group = group, .narrow = narrow}, query_tiles, kSms);
}
TEST(QuerySplits, of_tiles_that_fill_no_wave_take_less_time_and_bounded_memory) {
  for (const int64_t tiles : {1, 12, 64, 96, 132, 133, 136, 200, 263, 264, 265, 2048, 4096})
    for (const int query_tiles : {1, 4, 13, 26, 64, 205})
      for (const int group : {1, 2, 8}) {
        const int64_t n = alike(tiles, query_tiles, group), rest = tiles % kSms;
        EXPECT_LE(n, query_tiles) << "each has a step";
        if (n == 1) continue;
        EXPECT_LE(rest * n, 2 * kSms);
        EXPECT_LT(ceil_div(rest * n, kSms) * ceil_div(query_tiles, n), query_tiles) << tiles << " " << query_tiles;
      }
  EXPECT_EQ(alike(4096, 64), 8) << "four tiles for 132 SMs";
  EXPECT_EQ(alike(2048, 103), 3) << "68";
  EXPECT_EQ(alike(264, 64), 1) << "no last wave";
  EXPECT_EQ(alike(4096, 64, 1, true), 1) << "2.5 of a hundred saved";
  EXPECT_EQ(alike(23 * 15, 4, 8), 1) << "81 tiles, of which two waves of halves or thirds save nothing";
}
// b1 with a full mask on an H200, commit a1261d5: microseconds with 1, 2, 3, 4 and 8 query splits per tile.
TEST(QuerySplits, are_about_as_many_as_was_quickest) {
  struct Timed { int heads, length; bool narrow; double us[5]; };
  for (const Timed& t : {Timed{4, 2048, false, {79.0, 64.2, 83.8, 77.8, 107}},
                         {2, 2048, false, {76.5, 53.7, 46.4, 47.4, 71.0}},
                         {2, 4096, false, {140, 95.8, 126, 108, 134}},
                         {1, 8192, false, {259, 163, 209, 171, 196}},
                         {8, 1024, false, {50.0, 48.0, 62.1, 62.3, 111}},
                         {4, 1024, false, {47.1, 40.3, 37.0, 40.3, 60.4}},
                         {12, 1024, false, {55.0, 72.5, 78.2, 82.2}},
                         {20, 1024, false, {93.5, 86.0, 82.6, 82.8, 102}},
                         {6, 2048, false, {83.8, 104, 109, 105}},
                         {4, 2048, true, {51.0, 42.5, 52.0, 50.0, 67.6}},
                         {2, 4096, true, {86.9, 60.5, 77.7, 68.8, 85.4}},
                         {8, 1024, true, {33.9, 33.5, 42.6, 40.9, 61.8}},
                         {4, 1024, true, {32.0, 28.0, 26.9, 29.2, 39.2}},
                         {12, 1024, true, {36.2, 47.9, 48.5, 52.0}},
                         {6, 2048, true, {53.4, 65.8, 67.6, 66.2}},
                         {16, 512, true, {24.3, 29.2, 32.8, 34.9}}}) {
    const int splits = alike(t.heads * t.length / 128, int(ceil_div(t.length, t.narrow ? 128 : 80)), 1, t.narrow);
    double least = t.us[0];
    for (const double us : t.us) least = us > 0 ? std::min(least, us) : least;
    ASSERT_LE(splits, 4);
    EXPECT_LE(t.us[splits - 1], 1.05 * least) << t.heads << " heads of " << t.length << ": " << splits << " splits";
  }
}
// Causal masks: as many query tiles as key tiles remain, and twice as many.
TEST(QuerySplits, with_a_diagonal_are_of_the_longest_tiles) {
  for (const int64_t heads_total : {1, 2, 4, 8, 12, 16, 40})
    for (const int tiles : {1, 2, 8, 16, 32}) {
      const auto query_tiles = [=](int64_t n) { return tiles - int(n); };
      const KeySteps steps{.tiles = tiles, .heads_total = heads_total, .group = 1, .narrow = false};
      const int splits = query_splits_by_length(steps, query_tiles, kSms);
      if (splits == 1) continue;
      const int64_t divided = tiles_to_divide(steps, query_tiles, splits);
      EXPECT_EQ(divided % heads_total, 0) << "of all heads alike";
      EXPECT_GE(query_tiles(divided / heads_total - 1), splits) << "each has a step";
      EXPECT_LE(query_tiles(divided / heads_total), std::max<int64_t>(ceil_div(tiles, splits), splits - 1));
      EXPECT_LE(divided * splits, 2 * kSms);
    }
  const auto of = [](int tiles, int64_t heads_total) {
    return query_splits_by_length({.tiles = tiles, .heads_total = heads_total, .group = 1, .narrow = false},
                                  [=](int64_t n) { return 2 * (tiles - int(n)); }, kSms);
  };
  EXPECT_EQ(of(16, 8), 2) << "128 tiles, of 32 steps to 2";
  EXPECT_EQ(of(16, 4), 3);
  EXPECT_EQ(of(16, 16), 1) << "256, which share out evenly";
  EXPECT_EQ(of(4, 33), 1) << "too short";
}
// CTA n starts with tile n. Sections follow each other; within a section, each tile index runs over all heads.
TEST(Preparing, heads_of_first_tiles_are_ready_before) {
  for (const int section : {1, 2, 3, 16, 64})
    for (const int64_t tiles : {1, 2, 3, 11, 16, 100, 131, 132, 133, 1000}) {
      int64_t last = 0;
      for (int64_t block = 0; block < kSms; ++block)
        last = std::max(last, block / (section * tiles) * section + block % (section * tiles) % section);
      EXPECT_LT(last, heads_before(section, tiles, kSms)) << section << " " << tiles;
    }
  EXPECT_EQ(heads_before(1, 16, kSms), 18);
  EXPECT_EQ(heads_before(16, 16, kSms), 32);
}

}  // namespace
}  // namespace attune::sm90
