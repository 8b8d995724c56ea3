// SPDX-License-Identifier: Apache-2.0
// The kernels of sm90/forward/consumer_band.h, whose warpgroups walk separate key tiles; otherwise like
// sm90_forward_matrix_test.cpp.
#include "tests/emulated/forward_matrix.h"

namespace attune::sm90 {

alignas(1024) char memory[1];  // the kernel's symbol for shared memory: its address is 0 (barrier.h)

namespace {

using OfWindows =
    ForwardLayout<Bf16,
                  ForwardConfig{.dim = 128, .tile_k = 64, .warpgroups = 3, .kv_stages = 4, .own_key_tiles = true}>;
template <class T>
using Heads256 = ForwardLayout<T, ForwardConfig{.dim = 256, .tile_k = 64, .own_key_tiles = true}>;

TEST(Sm90BandMatrix, d128_with_three_warpgroups) {
  unsigned n = 0;
  expect_matrix<OfWindows>(n);
}
TEST(Sm90BandMatrix, d256) {
  unsigned n = 100;
  expect_matrix<Heads256<Bf16>>(n);
  const auto some = [](Asked& w, unsigned number) { w.sinks = number % 2, w.larger = 1 + number % 3 * 5; };
  expect_matrix<Heads256<F16>>(n, some);
}
TEST(Sm90BandMatrix, d256_by_shares) {
  unsigned n = 200;
  for (const int keys : {2, 3, 5})
    for (const int share : {1, 2, 3}) {
      Asked w = asked<Heads256<Bf16>>(keys, {2, 1}, n % 2 ? Sees::causal : Sees::all, n % 3);
      w.share = share, w.blocks = (2 * keys + share - 1) / share, w.fixed = false;
      if (w.blocks > 2) expect_right<Heads256<Bf16>>(w, emulated::Schedule::number(n++), 7);
    }
}
// Narrow bands, in which the warpgroups of a tile see different key tiles, the same, or none.
TEST(Sm90BandMatrix, narrow_bands) {
  unsigned n = 300;
  const int sides[][2] = {{0, 0}, {5, 0}, {3, 3}, {0, 3}, {64, 0}, {kAll, 0}, {40, -50}, {130, -70}};
  for (const auto& [left, right] : sides)
    for (const int rows : {65, 130, 384})
      for (const int blocks : {1, 2}) {
        const Asked w{.heads = rows > 128 ? 1 : 3, .heads_per_key = 1, .rows = rows, .keys = n % 3 ? rows : 200,
                      .left = left, .right = right, .blocks = blocks};
        expect_right<Heads256<Bf16>>(w, emulated::Schedule::number(n++), 7);
        if (n % 2) expect_right<OfWindows>(w, emulated::Schedule::number(n), 7);
        if (HasFailure()) return;
      }
}

}  // namespace
}  // namespace attune::sm90
