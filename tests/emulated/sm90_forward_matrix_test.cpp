// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/forward/consumer.h and producer.h, as compiled in instances/: every number of key and query tiles
// that matters to stages and grid, under all masks and all kinds of schedules.
#include "tests/emulated/forward_matrix.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's symbol for shared memory: its address is 0 (barrier.h)

namespace {

TEST(Sm90ForwardMatrix, d64) {
  unsigned n = 0;
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .ping_pong = true}>>(n);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .ping_pong = true, .f32_out = true}>>(
      n, [](Asked& w, unsigned) { w.accumulate = true; });
}
TEST(Sm90ForwardMatrix, d64_with_three_warpgroups) {
  unsigned n = 100;
  expect_matrix<ForwardLayout<F16, ForwardConfig{.dim = 64, .warpgroups = 3, .in_place = true, .ping_pong = true}>>(n);
}
TEST(Sm90ForwardMatrix, d96) {
  unsigned n = 200;
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 96}>>(n);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 96, .f32_out = true}>>(n);
}
TEST(Sm90ForwardMatrix, d128) {
  unsigned n = 300;
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 128}>>(n);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 128, .f32_out = true}>>(n);
}
TEST(Sm90ForwardMatrix, d192) {
  unsigned n = 400;
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 192, .dim_v = 128}>>(n);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 192, .dim_v = 128, .f32_out = true}>>(n);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 192, .tile_k = 96}>>(n);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 192, .tile_k = 96, .f32_out = true}>>(n);
}
TEST(Sm90ForwardMatrix, d256_in_f32) {
  unsigned n = 500;
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .f32_out = true}>>(n);
}
TEST(Sm90ForwardMatrix, options) {
  unsigned n = 600;
  const auto capped = [](Asked& w, unsigned number) { w.cap = number % 3 ? 5.f : 0.f, w.f32 = number % 5 == 0; };
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .options = true}>>(n, capped);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 128, .options = true}>>(n, capped);
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 256, .tile_k = 64, .options = true}>>(n, capped);
}
// Stream-K: CTAs divide the keys of all query tiles, or of none.
template <class C>
void expect_shared(unsigned n) {
  for (const int keys : {2, 3, 5})
    for (const int share : {1, 2, 3})
      for (const int heads : {1, 2}) {
        Asked w = asked<C>(keys, {heads, 1}, n % 2 ? Sees::causal : Sees::all, true);
        w.share = share, w.blocks = (heads * keys + share - 1) / share, w.fixed = false;
        if (w.blocks <= heads) continue;  // stream-K needs more CTAs than query tiles
        expect_right<C>(w, emulated::Schedule::number(n++), 7);
        if (testing::Test::HasFailure()) return;
      }
}
TEST(Sm90ForwardMatrix, shares) {
  expect_shared<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .ping_pong = true, .stream_k = true}>>(700);
  expect_shared<ForwardLayout<Bf16, ForwardConfig{.dim = 128}>>(720);
  unsigned n = 740;
  expect_matrix<ForwardLayout<Bf16, ForwardConfig{.dim = 64, .ping_pong = true, .stream_k = true}>>(n);
}

}  // namespace
}  // namespace attune::sm90
