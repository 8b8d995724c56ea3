// SPDX-License-Identifier: Apache-2.0
// Which kernel sm90_forward selects for problems with few queries, compared with times measured on an H200.
#include "attention/sm90/forward/cost.h"

#include <gtest/gtest.h>

#include <iterator>

#include "tests/asked.h"

namespace attune::sm90 {
namespace {

constexpr int kSms = 132;

// Measured microseconds, one column per row of kTimeModels for this head dim.
struct Timed { const char* line; double us[4]; };
constexpr Timed kTimed[] = {
    {"b1 h8 q128 k128 d64 full", {7.6, 8.3, 7.1, 6.6}},
    {"b32 h8 q128 k128 d64 full", {11.4, 12.8, 18.9, 14.3}},
    {"b1 h32 q256 k256 d64 full", {9.6, 10.4, 8.9, 8.5}},
    {"b8 h8 q256 k256 d64 causal", {10.9, 12.3, 12.2, 9.8}},
    {"b16 h8 q256 k256 d64 full", {13.7, 15.3, 21.2, 17.2}},
    {"b1 h16 q512 k512 d64 causal", {12.8, 13.7, 10.4, 11.0}},
    {"b1 h24 q512 k512 d64 causal", {14.3, 14.4, 13.2, 11.9}},
    {"b1 h32 q512 k512 d64 full", {13.0, 13.8, 16.4, 14.1}},
    {"b5 h8 q512 k512 d64 full", {17.7, 14.1, 21.8, 20.5}},
    {"b8 h8 q512 k512 d64 full", {18.7, 20.7, 28.0, 23.5}},
    {"b16 h8 q512 k512 d64 causal", {24.5, 29.6, 42.7, 31.7}},
    {"b1 h8 q1024 k1024 d64 full", {15.5, 18.1, 13.3, 15.4}},
    {"b1 h12 q1024 k1024 d64 full", {15.8, 18.6, 22.5, 19.4}},
    {"b1 h12 q1024 k1024 d64 causal", {16.3, 20.0, 14.8, 16.4}},
    {"b1 h16 q1024 k1024 d64 causal", {16.8, 20.4, 17.1, 17.1}},
    {"b1 h20 q1024 k1024 d64 full", {25.4, 19.6, 31.4, 31.1}},
    {"b1 h32 q1024 k1024 d64 causal", {20.4, 24.3, 29.8, 24.6}},
    {"b8 h8 q1024 k1024 d64 full", {44.3, 44.0, 74.9, 66.1}},
    {"b1 h4 q2048 k2048 d64 causal", {23.6, 28.2, 19.4, 24.8}},
    {"b1 h8 q2048 k2048 d64 full", {24.5, 29.5, 35.1, 32.4}},
    {"b1 h12 q2048 k2048 d64 full", {41.2, 30.2, 49.6, 53.1}},
    {"b1 h12 q2048 k2048 d64 causal", {25.3, 30.0, 33.7, 28.7}},
    {"b1 h24 q2048 k2048 d64 causal", {39.8, 38.4, 59.0, 53.0}},
    {"b1 h6 q4096 k4096 d64 full", {71.5, 50.4, 85.7, 96.3}},
    {"b1 h8 q4096 k4096 d64 causal", {42.8, 51.8, 65.3, 60.1}},
    {"b1 h12 q4096 k4096 d64 full", {104.5, 93.3, 164.6, 161.6}},
    {"b1 h32 q320 k1024 d64 full", {15.9, 18.8, 22.4, 19.5}},
    {"b8 h8 q128 k1024 d64 full", {16.3, 18.9, 14.0, 16.2}},
    {"b1 h32 q256 k256 d96 full", {10.9, 9.9}},
    {"b8 h8 q256 k256 d96 full", {12.2, 15.6}},
    {"b1 h32 q512 k512 d96 causal", {15.2, 16.9}},
    {"b1 h8 q1024 k1024 d96 full", {19.2, 18.0}},
    {"b1 h8 q128 k128 d128 full", {9.1, 7.9}},
    {"b16 h8 q128 k128 d128 full", {11.7, 14.6}},
    {"b1 h32 q256 k256 d128 causal", {12.8, 10.7}},
    {"b8 h8 q256 k256 d128 full", {13.6, 17.0}},
    {"b1 h16 q512 k512 d128 full", {15.3, 13.3}},
    {"b1 h24 q512 k512 d128 causal", {16.6, 15.8}},
    {"b1 h32 q512 k512 d128 full", {16.5, 22.0}},
    {"b1 h8 q1024 k1024 d128 full", {21.6, 19.2}},
    {"b1 h12 q1024 k1024 d128 full", {22.4, 32.4}},
    {"b1 h16 q1024 k1024 d128 causal", {23.4, 23.4}},
    {"b1 h24 q1024 k1024 d128 causal", {24.0, 32.8}},
    {"b1 h4 q2048 k2048 d128 full", {33.4, 29.5}},
    {"b1 h8 q2048 k2048 d128 full", {35.7, 54.4}},
    {"b1 h12 q2048 k2048 d128 causal", {33.3, 49.9}},
    {"b1 h4 q4096 k4096 d128 causal", {54.6, 54.0}},
    {"b8 h8 q128 k1024 d128 full", {24.2, 22.5}},
};

const TimeModel* quickest_of(const Problem& p) { return quickest(p, kSms, {.split_kv = true, .large = true}); }

TEST(ForwardCost, the_chosen_kernel_is_within_a_tenth_of_the_quickest_that_was_timed) {
  for (const auto& [line, us] : kTimed) {
    const Problem p = problem(std::string("forward bf16 ") + line);
    const TimeModel* chosen = quickest_of(p);
    ASSERT_TRUE(chosen) << line;
    double least = 1e9, mine = 0;
    int n = 0;
    for (const TimeModel& way : kTimeModels)
      if (way.dim == p.dim_qk) {
        least = std::min(least, us[n]);
        if (&way == chosen) mine = us[n];
        ++n;
      }
    EXPECT_LE(mine, 1.1 * least) << line << ": tiles of " << chosen->tile_q << " queries, " << chosen->splits;
    EXPECT_GT(mine, 0) << line;
  }
}

TEST(ForwardCost, a_wave_more_is_a_tile_more) {
  const TimeModel& four = kTimeModels[2];
  const double one = time_of(problem("forward bf16 b1 h8 q1024 k1024 d64 full"), four, kSms);   // 128 tiles
  const double two = time_of(problem("forward bf16 b1 h12 q1024 k1024 d64 full"), four, kSms);  // 192
  EXPECT_NEAR(two - one, four.cost.tile + 4 * four.cost.step, 1e-9);
  EXPECT_EQ(quickest_of(problem("forward bf16 b1 h12 q1024 k1024 d64 full"))->tile_q, 128);
}

TEST(ForwardCost, only_kernels_that_serve_a_problem_are_chosen) {
  const Problem shared = problem("forward bf16 b1 h8 q1024 k1024 d64 full");
  EXPECT_EQ(quickest(shared, kSms, {.split_kv = true, .large = true})->tile_q, kSplitKvRows);
  EXPECT_EQ(quickest(shared, kSms, {.split_kv = false, .large = true})->tile_q, 128);
  const Problem large = problem("forward bf16 b1 h12 q2048 k2048 d64 full");  // 132 tiles of 192, 192 of 128
  EXPECT_EQ(quickest(large, kSms, {.split_kv = true, .large = true})->tile_q, 192);
  EXPECT_EQ(quickest(large, kSms, {.split_kv = true, .large = false})->tile_q, 128);
  EXPECT_EQ(quickest_of(problem("forward bf16 b1 h8 q512 k512 d80 full"))->dim, 96);
  EXPECT_EQ(quickest_of(problem("forward bf16 b1 h8 q512 k512 d40/120 full"))->dim, 128);
  EXPECT_EQ(quickest_of(problem("forward bf16 b1 h8 q512 k512 d192 full")), nullptr);
  EXPECT_EQ(quickest_of(problem("forward bf16 b8 h16 q4096 k4096 d64 full")), nullptr);  // beyond the measured range
}

// Heads, queries, keys and head dim; microseconds without and with stream-K, on an H200. The former is the faster of
// one CTA per tile and sm90/forward/split_kv.h.
TEST(ForwardCost, blocks_share_the_keys_of_few_tiles_where_that_was_quicker) {
  struct Row { int heads, queries, keys, dim; double other, shared; };
  constexpr Row kRows[] = {
      {8, 128, 1024, 64, 13.1, 15.4},    {2, 512, 2048, 64, 18.8, 17.3},   {8, 128, 4096, 64, 31.1, 19.2},
      {1, 128, 16384, 64, 101.9, 23.7},  {16, 512, 1024, 64, 13.4, 18.1},  {8, 128, 16384, 64, 102.5, 28.1},
      {8, 128, 1024, 128, 17.5, 17.9},   {8, 128, 2048, 128, 28.2, 21.8},  {1, 128, 16384, 128, 162.3, 32.5},
      {16, 512, 1024, 128, 18.7, 22.4},  {16, 512, 4096, 128, 51.2, 41.2}, {8, 1024, 8192, 128, 94.1, 67.0},
      {8, 128, 1024, 256, 29.5, 27.5},   {16, 512, 1024, 256, 30.5, 32.1}, {1, 128, 16384, 256, 308.3, 37.2},
      {16, 512, 8192, 256, 162.2, 114.2}};
  for (const Row& r : kRows) {
    const Problem p = problem(join("forward bf16 b1 h", r.heads, " q", r.queries, " k", r.keys, " d", r.dim, " full"));
    const StreamK s = stream_k_of_all(p, 128, r.dim == 256 ? 64 : 128, r.dim, kSms);
    EXPECT_EQ(s.steps, ceil_div(r.keys, r.dim == 256 ? 64 : 128)) << name(p);
    EXPECT_LE(ceil_div(s.tiles * s.steps, s.share), kSms) << name(p);
    EXPECT_LE(ceil_div(s.steps, s.share), std::max(16, r.dim / 8)) << name(p);
    const bool pays = stream_k_pays(p, s, r.dim, quickest_of(p), kSms);
    EXPECT_LE(pays ? r.shared : r.other, 1.06 * std::min(r.shared, r.other)) << name(p);
  }
}

// StreamK counts key tiles from the end of each query tile, so no query tile may have more than it is given.
TEST(ForwardCost, no_query_tile_sees_more_key_tiles_than_are_shared) {
  for (const char* mask : {"full", "causal", "causal@top_left", "window511,0", "window100,30", "window*,-700@top_left",
                           "window700,-300", "window5,-9", "window*,40"})
    for (const auto& [queries, keys] : {std::pair{130, 16384}, {900, 300}, {4096, 4096}, {1, 1}, {3000, 700}}) {
      const Problem p = problem(join("forward bf16 b1 h1 q", queries, " k", keys, " d128 ", mask));
      const BandWalk walk{band_of(p.mask, queries, keys, 0, 0), keys, 128};
      int most = 1;
      for (int row = 0; row < queries; row += 128)
        most = std::max(most, walk.tiles({row, std::min(row + 128, queries)}));
      EXPECT_GE(most_steps(p, 128, 128), most) << name(p);
      EXPECT_LE(most_steps(p, 128, 128), most + 1) << name(p);
    }
}

// Microseconds of sm80_forward on an H200.
TEST(ForwardCost, the_time_of_the_next_link_is_about_what_it_took) {
  struct Row { const char* line; double us; };
  for (const auto& [line, us] : {Row{"h8 q128 k4096 d64 full", 35.2}, {"h2 q512 k16384 d64 full", 52.8},
                                 {"h8 q512 k4096 d64 full", 42.5}, {"h8 q128 k4096 d128 causal", 63.4},
                                 {"h2 q512 k16384 d128 causal", 106}, {"h8 q512 k4096 d128 causal", 69.7},
                                 {"h8 q1024 k8192 d128 full", 140}}) {
    const Problem p = problem(join("forward bf16 b1 ", line));
    const double time = next_link_time(p, p.dim_qk);
    EXPECT_TRUE(us > 0.8 * time && us < 1.4 * time) << line << ": " << time;
  }
}

}  // namespace
}  // namespace attune::sm90
