// SPDX-License-Identifier: Apache-2.0
// Kernels that take key tiles from lists, with sm90/forward/consumer_lists.h and with the plain consumer; like
// sm90_forward_matrix_test.cpp, with lists of as many key tiles.
#include "tests/emulated/forward_matrix.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's symbol for shared memory: its address is 0 (barrier.h)

namespace {


// Lists of up to one more entry than stages; the two warpgroups' lists are alike, or one is empty or much longer.
template <class C>
void expect_lists(unsigned number, Blocks size) {
  const int per_block = std::max(1, size.k / C::kTileK), most = (C::kStages + 1 + per_block - 1) / per_block;
  const std::vector<int> counts[] = {{1},       {2, 1},          {0, 1},          {most, 0, 0, 1}, {most - 1, most},
                                     {0, 0, 3}, {1, most, 2, 0}, {most, most + 2}};
  for (const std::vector<int>& of : counts)
    for (const Tiles& tiles : kTiles) {
      const unsigned n = number++;
      const Sees sees = n % 4 == 1 ? Sees::causal : n % 4 == 3 ? Sees::window : Sees::all;
      Asked w = asked<C>(1, tiles, sees, n / 3 % 2);
      w.rows -= n % 2 * 70, w.keys = std::max(w.rows, (most + 2) * size.k - int(n % 3) * 13), w.fixed = false;
      w.size = size, w.counts = of, w.f32 = C::kRuntimeOutType && n % 5 == 0, w.ahead = C::kAhead && n % 2;
      w.behind = n % 3 ? 0 : 30;
      if (C::kOptions) w.cap = 5.f;
      expect_right<C>(w, emulated::Schedule::number(n), 7);
      if (testing::Test::HasFailure()) return;
    }
}

TEST(Sm90ListsMatrix, one_list) {
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .ping_pong = true, .lists = Lists::one}>>(0, {128, 128});
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 128, .lists = Lists::one}>>(100, {128, 128});
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::one}>>(200, {128, 128});
}
TEST(Sm90ListsMatrix, one_list_in_f32) {
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .f32_out = true, .lists = Lists::one}>>(
      300, {128, 128});
}
TEST(Sm90ListsMatrix, a_list_for_each_warpgroup) {
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .tile_k = 64, .kv_stages = 8, .lists = Lists::each}>>(
      400, {64, 64});
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 128, .tile_k = 64, .kv_stages = 4, .lists = Lists::each}>>(
      500, {64, 128});
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::each}>>(600, {64, 64});
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::each}>>(640, {128, 64});
}
TEST(Sm90ListsMatrix, a_list_for_each_warpgroup_with_options) {
  expect_lists<ForwardLayout<
      Bf16, ForwardConfig{.dim = 64, .tile_k = 64, .kv_stages = 8, .lists = Lists::each, .options = true}>>(700,
                                                                                                            {128, 128});
  expect_lists<ForwardLayout<
      Bf16, ForwardConfig{.dim = 128, .tile_k = 64, .kv_stages = 4, .lists = Lists::each, .options = true}>>(800,
                                                                                                             {64, 64});
  expect_lists<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .lists = Lists::each, .options = true}>>(
      900, {64, 128});
}

}  // namespace
}  // namespace attune::sm90
