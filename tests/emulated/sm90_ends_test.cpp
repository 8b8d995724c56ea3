// The kernel of forward.sm90.ends.h, whose query tiles begin and end with steps of their own.
#include "tests/emulated/sm90_forward.h"

namespace attune::sm90 {
namespace {

template <class T>
using Kernel = ForwardShape<T, kDim, kDim, 128, 2, 2, 2, false, false, false>;
static_assert(Kernel<F16>::kEnds);
constexpr int kAll = 1 << 20;  // keys to the left, or to the right

TEST(Sm90Ends, a_diagonal_is_right) {
  expect_right<Kernel<Bf16>>({2, 1, 520, 520, kAll, 0, 2}, 1);
  expect_right<Kernel<F16>>({4, 2, 200, 600, kAll, 0, 2, true, true}, 2);
}
TEST(Sm90Ends, all_keys_and_a_last_tile_of_some_are_right) {
  expect_right<Kernel<Bf16>>({3, 1, 300, 450, kAll, kAll, 2}, 3);
}
TEST(Sm90Ends, both_edges_of_a_window_are_right) {
  expect_right<Kernel<F16>>({2, 1, 520, 520, 150, 20, 2}, 4);
}
TEST(Sm90Ends, rows_that_see_nothing_and_single_key_tiles_are_right) {
  expect_right<Kernel<Bf16>>({3, 1, 500, 200, kAll, 0, 2}, 5);
  expect_right<Kernel<F16>>({3, 1, 400, 400, 40, -5, 2}, 6);
}
TEST(Sm90Ends, maxima_that_move_are_right_at_any_pace_of_warps_and_copies) {
  for (unsigned seed = 20; seed < 22; ++seed)
    expect_right<Kernel<Bf16>>({2, 1, 640, 640, kAll, 0, 2, false, true, 10}, seed);
}

}  // namespace
}  // namespace attune::sm90
