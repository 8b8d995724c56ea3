// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/forward/kernel.h on the emulator, compared with attention in double at many schedules. Covers the
// plain consumer and sm90/forward/consumer_band.h: d128 for windows, and d256.
#include "tests/emulated/forward_problem.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's symbol for shared memory: its address is 0 (barrier.h)

namespace {

template <class T>
using Plain = ForwardLayout<T, ForwardConfig{.dim = 128}>;
template <class T>
using Narrow = ForwardLayout<T, ForwardConfig{.dim = 64, .ping_pong = true}>;
template <class T>
using InPlace = ForwardLayout<T, ForwardConfig{.dim = 64, .warpgroups = 3, .in_place = true, .ping_pong = true}>;
template <class T>
using OfWindows =
    ForwardLayout<T, ForwardConfig{.dim = 128, .tile_k = 64, .warpgroups = 3, .kv_stages = 4, .own_key_tiles = true}>;
template <class T>
using Heads256 = ForwardLayout<T, ForwardConfig{.dim = 256, .tile_k = 64, .own_key_tiles = true}>;

TEST(Sm90Forward, tiles_of_one_key_tile_and_of_many_are_right) {
  expect_right<Plain<Bf16>>({1, 1, 700, 700, kAll, 0, 2}, 1);
  expect_right<Plain<F16>>({2, 2, 300, 500, kAll, kAll, 2, true, true, 1, true}, 2);
  expect_right<Plain<Bf16>>({2, 1, 200, 90, kAll, kAll, 1, false, false, 1, true}, 3);
}
TEST(Sm90Forward, blocks_with_one_tile_and_with_none_are_right) {
  expect_right<Plain<Bf16>>({1, 1, 250, 513, kAll, kAll, 2, false, false, 1, true}, 4);
  expect_right<Plain<Bf16>>({1, 1, 128, 128, kAll, 0, 1}, 5);
  expect_right<Plain<Bf16>>({1, 1, 100, 400, kAll, 0, 2}, 6);
}
TEST(Sm90Forward, rows_that_see_nothing_and_maxima_that_move_are_right) {
  expect_right<Plain<Bf16>>({2, 1, 500, 200, kAll, -30, 2}, 7);
  expect_right<Plain<F16>>({1, 1, 400, 400, 60, -5, 1}, 8);
  for (unsigned seed = 9; seed < 11; ++seed)
    expect_right<Plain<Bf16>>({2, 1, 380, 640, kAll, 0, 2, false, true, 10}, seed);
}

// Ping-pong with two or three warpgroups.
TEST(Sm90Forward, narrow_heads_are_right) {
  expect_right<Narrow<Bf16>>({1, 1, 700, 700, kAll, 0, 2}, 11);
  expect_right<Narrow<F16>>({2, 1, 200, 90, kAll, kAll, 1, true, true, 1, true}, 12);
  expect_right<Narrow<Bf16>>({2, 1, 300, 640, kAll, -30, 2, false, false, 10}, 13);
  expect_right<Narrow<Bf16>>({1, 1, 100, 513, kAll, kAll, 2, false, false, 1, true}, 14);
  expect_right<InPlace<Bf16>>({2, 1, 500, 500, kAll, 0, 2}, 15);
  expect_right<InPlace<F16>>({2, 2, 300, 90, kAll, kAll, 1, true, true, 1, true}, 16);
  expect_right<InPlace<Bf16>>({1, 1, 400, 640, kAll, -30, 2, false, false, 10}, 17);
  expect_right<InPlace<Bf16>>({1, 1, 192, 513, kAll, kAll, 1, false, false, 1, true}, 18);
}

TEST(Sm90Window, tiles_of_192_queries_are_right) {
  expect_right<OfWindows<Bf16>>({1, 1, 832, 832, 300, 0, 2}, 1);
  expect_right<OfWindows<F16>>({4, 2, 250, 600, 511, 20, 2, true, true}, 2);
}
TEST(Sm90Window, rows_that_see_nothing_and_single_key_tiles_are_right) {
  expect_right<OfWindows<Bf16>>({2, 1, 700, 300, 256, -30, 2}, 3);
  expect_right<OfWindows<F16>>({2, 1, 577, 577, 40, -5, 2}, 4);
}
TEST(Sm90Window, no_pace_of_warps_and_copies_makes_it_stand_still) {
  for (unsigned seed = 20; seed < 22; ++seed)
    expect_right<OfWindows<Bf16>>({2, 1, 640, 640, 256, 0, 2, false, true, 10}, seed);
  // A copy that lands long after later ones: its tile is skipped, and its stage was released before the copy arrived.
  for (unsigned seed : {111, 118}) expect_right<OfWindows<Bf16>>({1, 1, 577, 577, 300, 0, 1}, seed);
}

// Rows with infinite scores become NaN, as required; rows of the CTA's previous query tile must not.
template <class C>
void expect_apart(unsigned seed) {
  Call<C> call({4, 1, 64, 200, kAll, kAll, 1, true, false, 1, true}, seed);
  const auto first_of_row = [&](int head, int row) { return call.place(head, row, 4, 64, C::kDim); };
  for (const int head : {1, 3})
    for (const int row : {5, 13}) call.q[first_of_row(head, row)] = typename C::T(3e38f);
  ASSERT_EQ(call.run({.seed = seed}), "");
  EXPECT_LT(call.error(1, 2), 0.02);
  EXPECT_TRUE(std::isnan(float(call.out[first_of_row(1, 5)])));
}
TEST(Sm90Forward, infinite_scores_stay_in_their_rows) {
  expect_apart<Plain<Bf16>>(19);
  expect_apart<Narrow<Bf16>>(20);
  expect_apart<InPlace<Bf16>>(21);
  expect_apart<Heads256<Bf16>>(22);
}

// More query tiles than CTAs, with one or two key tiles each, of which a warpgroup skips one. These once deadlocked: a
// tile skipped before a warpgroup's last product was never released, and the other warpgroup waited for v in its stage.
TEST(Sm90Heads256, many_tiles_of_one_or_two_key_tiles_end) {
  const Asked lines[] = {{2, 1, 384, 384, 0, 0, 1},      {4, 2, 100, 1000, 0, 0, 1}, {3, 1, 64, 1000, 5, 0, 1},
                         {4, 2, 128, 128, 0, 3, 1},      {4, 2, 100, 128, 5, 0, 2},  {4, 1, 65, 200, 3, 3, 1},
                         {3, 3, 64, 81, 3, 3, 1, true},  {3, 1, 130, 65, 5, 0, 1},   {6, 2, 65, 129, kAll, 0, 1},
                         {2, 1, 384, 384, 0, 0, 1, false, true, 1, true}};
  unsigned seed = 30;
  for (const Asked& w : lines) expect_right<Heads256<Bf16>>(w, ++seed);
  expect_right<Heads256<F16>>(lines[0], ++seed);
}

}  // namespace
}  // namespace attune::sm90
