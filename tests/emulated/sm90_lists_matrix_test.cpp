// Kernels whose key tiles come from lists, of sm90/forward/consumer_lists.h and of the plain consumer: as
// sm90_forward_matrix_test.cpp, with lists of as many key tiles.
#include "tests/emulated/forward_matrix.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's name for shared memory: its address is 0 (barrier.h)

namespace {

template <int Dim, int TileK, int QStages, bool Turns, bool Wide>
using One = ForwardShape<Bf16, Dim, Dim, TileK, 2, QStages, 2, false, Turns, Wide, Lists::one>;
template <int Dim, int QStages, int Stages, bool Options>
using Each = ForwardShape<Bf16, Dim, Dim, 64, 2, QStages, Stages, false, false, false, Lists::each, Options>;

// Lists of up to a stage more than there are, of the two warpgroups alike, or one empty, or far longer.
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
      w.size = size, w.counts = of, w.wide = C::kEither && n % 5 == 0, w.ahead = C::kAhead && n % 2;
      w.behind = n % 3 ? 0 : 30;
      if (C::kOptions) w.cap = 5.f;
      expect_right<C>(w, emulated::Schedule::number(n), 7);
      if (testing::Test::HasFailure()) return;
    }
}

TEST(Sm90ListsMatrix, one_list) {
  expect_lists<One<64, 128, 2, true, false>>(0, {128, 128});
  expect_lists<One<128, 128, 2, false, false>>(100, {128, 128});
  expect_lists<One<256, 64, 1, false, false>>(200, {128, 128});
}
TEST(Sm90ListsMatrix, one_list_in_f32) { expect_lists<One<256, 64, 1, false, true>>(300, {128, 128}); }
TEST(Sm90ListsMatrix, a_list_for_each_warpgroup) {
  expect_lists<Each<64, 2, 8, false>>(400, {64, 64});
  expect_lists<Each<128, 2, 4, false>>(500, {64, 128});
  expect_lists<Each<256, 1, 2, false>>(600, {64, 64});
  expect_lists<Each<256, 1, 2, false>>(640, {128, 64});
}
TEST(Sm90ListsMatrix, a_list_for_each_warpgroup_with_options) {
  expect_lists<Each<64, 2, 8, true>>(700, {128, 128});
  expect_lists<Each<128, 2, 4, true>>(800, {64, 64});
  expect_lists<Each<256, 1, 2, true>>(900, {64, 128});
}

}  // namespace
}  // namespace attune::sm90
