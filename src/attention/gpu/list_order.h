// SPDX-License-Identifier: Apache-2.0
// The order in which CTAs take rows of block lists: longest first. The order does not change results.
#pragma once
#include "attention/gpu/sort_by_length.h"
#include "core/args.h"
#include "core/divisor.h"

namespace attune::sm80 {

// Query tiles (lists by query block) or key tiles (by key block), in the order of an unsorted grid: tile after tile of
// a (sequence, head) pair, last first if `falling`; or, where lengths differ, pair after pair of a tile.
struct ListOrder {
  int32_t* place;           // [heads * tiles]: work item of each CTA; null: its own index
  Role begin;               // block_begin or block_begin_k
  Divisor tiles, heads;     // tiles per pair; heads per sequence
  Divisor tiles_per_block;  // tiles per block of the list
  uint32_t batch;
  uint32_t group;           // query heads per pair
  bool falling, by_tile;

  __host__ __device__ uint32_t count() const { return batch * heads.by * tiles.by; }
  __device__ uint32_t length(const Problem& p, const DenseArgs& a, uint32_t n) const {
    const uint32_t all = batch * heads.by;
    uint32_t pair = by_tile ? n % all : tiles.divide(n), tile = by_tile ? n / all : tiles.rest(n);
    if (falling) tile = tiles.by - 1 - tile;
    const int row = int(tiles_per_block.divide(tile));
    uint32_t sum = 0;
    for (uint32_t g = 0; g < group; ++g) {
      const int head = int(heads.rest(pair) * group + g);
      const BlockList list{p.mask.blocks, a.row<const int32_t>(begin, int(heads.divide(pair)), 0, head), nullptr};
      sum += uint32_t(list.count(row));
    }
    return sum;
  }
};

// Called by one CTA of kThreads.
template <int kThreads>
__device__ inline void find_order(const ListOrder& order, const Problem& p, const DenseArgs& a) {
  put_by_length<kThreads>(
      int(order.count()), [](int n) { return n; }, [&](int n) { return order.length(p, a, uint32_t(n)); },
      [&](int place, int n) { order.place[place] = n; });
}

}  // namespace attune::sm80
