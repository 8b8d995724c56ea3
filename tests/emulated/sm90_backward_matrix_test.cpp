// SPDX-License-Identifier: Apache-2.0
// Every compiled kernel of sm90/backward/kernel.h over numbers of query tiles per key tile, from none to more than
// there are stages and buffers; over masks and lists; and with fewer, as many and more key tiles than CTAs. A ring
// fails where it begins, ends or wraps, so sizes are the smallest that reach these points. Each case has a different
// schedule.
#include "tests/emulated/backward_problem.h"

namespace attune::sm90 {
namespace {

// Persistent CTAs: one takes all tiles, or each takes one; in a deterministic kernel an extra CTA finds none.
template <class C>
int blocks_of(unsigned n, int tiles) {
  if (!C::kPersistent) return 0;
  return n % 3 == 0 ? 1 : n % 3 == 1 || !C::kDeterministic ? tiles : tiles + 1;
}

// A persistent CTA only has keys that some query sees.
template <class C>
void expect_all_right(unsigned seed) {
  constexpr int kTileQ = C::kTileQ, kKeys = 150;  // two tiles, one of them partial
  unsigned n = seed;
  for (int tiles = 1; tiles <= (C::kIndependent ? C::kBuffers : C::kStages) + 1; ++tiles) {
    const int rows = tiles * kTileQ - 9;
    const struct { int rows, keys; Mask mask; } cases[] = {
        {rows, kKeys, kFull},
        {rows, kKeys, kCausal},
        {rows, std::min(rows + 30, kKeys), kWindow},
        {rows + 60, std::min(rows, kKeys), kCausal},  // the first rows see no key
    };
    for (const auto& c : cases) {
      const bool alone = C::kPersistent && !(C::kDeterministic || C::kHeadSplits), later = alone && n % 4 == 1;
      Asked w{.batch = 1, .heads = C::kHeadSplits || later ? 2 : 1, .heads_kv = later ? 2 : 1,
              .head_splits = C::kHeadSplits ? 2 : 1, .rows = c.rows, .keys = c.keys, .dim = C::kDim, .mask = c.mask};
      const int all = int(ceil_div(c.keys, C::kTileK)) * w.heads_kv * w.head_splits;
      if (C::kQuerySplits && tiles > 1 && c.mask.kind == MaskKind::full) w.divided = 1, w.query_splits = 2;
      if (later) w.ready = 1;
      w.blocks = blocks_of<C>(n, all + w.divided);
      expect_right<C>(w, ++n);
    }
  }
  const int split = C::kHeadSplits ? 2 : 1;
  if (!C::kPersistent) expect_right<C>({1, split, 1, split, 60, 300, C::kDim, kTopLeft}, ++n);
}
// All blocks of a list, some, and none.
template <class C>
void expect_lists_right(unsigned seed) {
  unsigned n = seed;
  for (int tiles = 1; tiles <= (C::kPersistent ? kVisitsAhead : C::kStages) + 1; ++tiles)
    for (const double density : {1., 0.4, 0.}) {
      if (density < 1 && tiles > 2) continue;
      Asked w{1, 1, 1, 1, tiles * C::kTileQ - 9, 150, C::kDim, n % 2 ? kCausal : kFull};
      w.blocks = blocks_of<C>(n, 2);
      expect_right<C>(list(w, C::kTileQ, density), ++n);
    }
}

TEST(Sm90BackwardMatrix, plain) {
  expect_all_right<Plain<Bf16, 64>>(100);
  expect_all_right<Plain<F16, 96>>(200);
  expect_all_right<Plain<Bf16, 128>>(300);
  expect_all_right<Transposed<Bf16>>(400);
}
TEST(Sm90BackwardMatrix, in_a_fixed_order) {
  expect_all_right<Deterministic<F16, 64>>(500);
  expect_all_right<Deterministic<Bf16, 96>>(600);
  expect_all_right<Deterministic<Bf16, 128>>(700);
}
TEST(Sm90BackwardMatrix, with_a_table) {
  expect_all_right<Tabled<Bf16, 64>>(800);
  expect_all_right<Tabled<F16, 64, true>>(900);
  expect_all_right<Tabled<Bf16, 128>>(1000);
  expect_all_right<Tabled<Bf16, 128, true>>(1100);
}
TEST(Sm90BackwardMatrix, with_options) {
  expect_all_right<WithOptions<Bf16, 64>>(1200);
  expect_all_right<WithOptions<Bf16, 64, true>>(1300);
  expect_all_right<WithOptions<F16, 128>>(1400);
  expect_all_right<WithOptions<Bf16, 128, true>>(1500);
}
TEST(Sm90BackwardMatrix, blocks_that_stay) {
  expect_all_right<Persistent<Bf16, 64, 128>>(1600);
  expect_all_right<Persistent<Bf16, 128, 64>>(1700);
  expect_all_right<Persistent<Bf16, 128, 80>>(1800);
}
TEST(Sm90BackwardMatrix, blocks_that_stay_in_a_fixed_order) {
  expect_all_right<PersistentDeterministic<Bf16, 64>>(1900);
  expect_all_right<PersistentDeterministic<F16, 128>>(2000);
}
TEST(Sm90BackwardMatrix, query_splits) {
  expect_all_right<QuerySplit<F16, 64, 128>>(2100);
  expect_all_right<QuerySplit<Bf16, 128, 64>>(2200);
  expect_all_right<QuerySplit<Bf16, 128, 80>>(2300);
}
TEST(Sm90BackwardMatrix, divided_heads) {
  expect_all_right<HeadSplit<Bf16, 64>>(2400);
  expect_all_right<HeadSplit<Bf16, 64, true>>(2500);
  expect_all_right<HeadSplit<F16, 128>>(2600);
  expect_all_right<HeadSplit<Bf16, 128, true>>(2700);
  expect_all_right<PersistentHeadSplit<Bf16>>(2800);
}
TEST(Sm90BackwardMatrix, lists) {
  expect_lists_right<Listed<Bf16, 64>>(2900);
  expect_lists_right<Listed<Bf16, 128>>(3000);
  expect_lists_right<PersistentListed<Bf16>>(3100);
}

}  // namespace
}  // namespace attune::sm90
