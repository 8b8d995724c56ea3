// SPDX-License-Identifier: Apache-2.0
// Every number of key tiles that matters to a ring of stages, with every number of query tiles that matters to a grid,
// under alternating masks and schedules.
#pragma once
#include "tests/emulated/forward_problem.h"

namespace attune::sm90 {

struct Tiles { int count, blocks; };
// Fewer tiles than CTAs, as many, more, and several per CTA.
inline constexpr Tiles kTiles[] = {{1, 2}, {2, 2}, {3, 2}, {5, 1}};

template <class C>
std::vector<int> key_tiles() {
  std::vector<int> all{1, 2, 3, C::kStages - 1, C::kStages, C::kStages + 1};
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  while (all.front() < 1) all.erase(all.begin());
  return all;
}
enum class Sees { all, causal, window, nothing };  // nothing: some rows and some tiles see no key

// The query tiles belong to one head, or to as many heads with one tile each.
template <class C>
Asked asked(int keys, Tiles tiles, Sees sees, bool by_heads) {
  Asked w{};
  w.heads = by_heads ? tiles.count : 1, w.heads_per_key = w.heads, w.blocks = tiles.blocks;
  w.rows = (by_heads ? 1 : tiles.count) * C::kTileQ - (keys % 2 ? 0 : 37), w.keys = keys * C::kTileK - (keys % 3) * 11;
  w.left = w.right = kAll;
  if (sees == Sees::causal) w.right = 0;
  if (sees == Sees::window) w.left = keys % 2 ? 0 : 70, w.right = keys % 2 ? 0 : 3;
  if (sees == Sees::nothing) w.left = 40, w.right = -30 - 20 * (keys % 3);
  w.fixed = sees == Sees::all && tiles.count % 2;
  return w;
}

// Expects correct results from all launches of a kernel, under any schedule.
template <class C, class Change>
void expect_matrix(unsigned& number, Change change, int every = 7) {
  for (const int keys : key_tiles<C>())
    for (const Tiles& tiles : kTiles)
      for (int twice = 0; twice < 2; ++twice) {
        const unsigned n = number++;
        Asked w = asked<C>(keys, tiles, Sees((n / 2 + unsigned(twice) * 2) % 4), n / 3 % 2);
        change(w, n);
        expect_right<C>(w, emulated::Schedule::number(n), every);
        if (testing::Test::HasFailure()) return;
      }
}
template <class C>
void expect_matrix(unsigned& number) {
  expect_matrix<C>(number, [](Asked&, unsigned) {});
}

}  // namespace attune::sm90
