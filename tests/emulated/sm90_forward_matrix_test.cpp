// Kernels of sm90/forward/consumer.h and .producer.h, as they are compiled in forward.sm90.d#.cu: every number of key
// and query tiles that stages and grid tell apart, under all masks, at all kinds of schedules.
#include "tests/emulated/forward_matrix.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's name for shared memory: its address is 0 (barrier.h)

namespace {

template <class T, int Dim, int DimV, int TileK, int Groups, int QStages, bool InPlace, bool Turns, bool Wide>
using Shape = ForwardShape<T, Dim, DimV, TileK, Groups, QStages, 2, InPlace, Turns, Wide>;
template <int Dim, int TileK, int QStages>
using Options = ForwardShape<Bf16, Dim, Dim, TileK, 2, QStages, 2, false, false, false, Lists::none, true>;
using Shared64 =
    ForwardShape<Bf16, 64, 64, 128, 2, 2, 2, false, true, false, Lists::none, false, false, true>;

TEST(Sm90ForwardMatrix, d64) {
  unsigned n = 0;
  expect_matrix<Shape<Bf16, 64, 64, 128, 2, 2, false, true, false>>(n);
  expect_matrix<Shape<Bf16, 64, 64, 128, 2, 2, false, true, true>>(n, [](Asked& w, unsigned) { w.accumulate = true; });
}
TEST(Sm90ForwardMatrix, d64_with_three_warpgroups) {
  unsigned n = 100;
  expect_matrix<Shape<F16, 64, 64, 128, 3, 2, true, true, false>>(n);
}
TEST(Sm90ForwardMatrix, d96) {
  unsigned n = 200;
  expect_matrix<Shape<Bf16, 96, 96, 128, 2, 2, false, false, false>>(n);
  expect_matrix<Shape<Bf16, 96, 96, 128, 2, 2, false, false, true>>(n);
}
TEST(Sm90ForwardMatrix, d128) {
  unsigned n = 300;
  expect_matrix<Shape<Bf16, 128, 128, 128, 2, 2, false, false, false>>(n);
  expect_matrix<Shape<Bf16, 128, 128, 128, 2, 2, false, false, true>>(n);
}
TEST(Sm90ForwardMatrix, d192) {
  unsigned n = 400;
  expect_matrix<Shape<Bf16, 192, 128, 128, 2, 1, false, false, false>>(n);
  expect_matrix<Shape<Bf16, 192, 128, 128, 2, 1, false, false, true>>(n);
  expect_matrix<Shape<Bf16, 192, 192, 96, 2, 1, false, false, false>>(n);
  expect_matrix<Shape<Bf16, 192, 192, 96, 2, 1, false, false, true>>(n);
}
TEST(Sm90ForwardMatrix, d256_in_f32) {
  unsigned n = 500;
  expect_matrix<Shape<Bf16, 256, 256, 64, 2, 1, false, false, true>>(n);
}
TEST(Sm90ForwardMatrix, options) {
  unsigned n = 600;
  const auto capped = [](Asked& w, unsigned number) { w.cap = number % 3 ? 5.f : 0.f, w.wide = number % 5 == 0; };
  expect_matrix<Options<64, 128, 2>>(n, capped);
  expect_matrix<Options<128, 128, 2>>(n, capped);
  expect_matrix<Options<256, 64, 1>>(n, capped);
}
// Blocks that share the keys of all query tiles, or of none.
template <class C>
void expect_shared(unsigned n) {
  for (const int keys : {2, 3, 5})
    for (const int share : {1, 2, 3})
      for (const int heads : {1, 2}) {
        Asked w = asked<C>(keys, {heads, 1}, n % 2 ? Sees::causal : Sees::all, true);
        w.share = share, w.blocks = (heads * keys + share - 1) / share, w.fixed = false;
        if (w.blocks <= heads) continue;  // more blocks than query tiles
        expect_right<C>(w, emulated::Schedule::number(n++), 7);
        if (testing::Test::HasFailure()) return;
      }
}
TEST(Sm90ForwardMatrix, shares) {
  expect_shared<Shared64>(700);
  expect_shared<Shape<Bf16, 128, 128, 128, 2, 2, false, false, false>>(720);
  unsigned n = 740;
  expect_matrix<Shared64>(n);
}

}  // namespace
}  // namespace attune::sm90
