// The kernel of forward.sm90.band.h, for windows.
#include "tests/emulated/sm90_forward.h"

namespace attune::sm90 {
namespace {

template <class T>
using Kernel = ForwardShape<T, kDim, kDim, 64, 3, 2, 4, false, false, false, Lists::none, false, true>;

TEST(Sm90Window, tiles_of_192_queries_are_right) {
  expect_right<Kernel<Bf16>>({1, 1, 832, 832, 300, 0, 2}, 1);
  expect_right<Kernel<F16>>({4, 2, 250, 600, 511, 20, 2, true, true}, 2);
}
TEST(Sm90Window, rows_that_see_nothing_and_single_key_tiles_are_right) {
  expect_right<Kernel<Bf16>>({2, 1, 700, 300, 256, -30, 2}, 3);
  expect_right<Kernel<F16>>({2, 1, 577, 577, 40, -5, 2}, 4);
}
TEST(Sm90Window, no_pace_of_warps_and_copies_makes_it_stand_still) {
  for (unsigned seed = 20; seed < 22; ++seed)
    expect_right<Kernel<Bf16>>({2, 1, 640, 640, 256, 0, 2, false, true, 10}, seed);
  // A copy that lands long after those behind it: its tile is passed over, and was given back before it was there.
  for (unsigned seed : {111, 118}) expect_right<Kernel<Bf16>>({1, 1, 577, 577, 300, 0, 1}, seed);
}

}  // namespace
}  // namespace attune::sm90
