// In which order blocks of threads take rows of block lists: the longest first. Order changes no result.
#pragma once
#include "attention/gpu/sort_by_length.h"
#include "core/args.h"
#include "core/divisor.h"

namespace attune::sm80 {

// Tiles of rows (of lists by query block) or of keys (by key block), as a grid without order would take them: tile
// after tile of a unit, the last first where `falling`, or, where lengths differ, unit after unit of a tile.
struct ListOrder {
  int32_t* place;         // [units * tiles]: which a block takes; null: its own
  Role begin;             // block_begin or block_begin_k
  Divisor tiles, units;   // tiles of a unit; units of a sequence
  Divisor pieces;         // tiles of a block of the list
  uint32_t batch;
  uint32_t group;         // query heads of a unit
  bool falling, by_tile;

  __host__ __device__ uint32_t count() const { return batch * units.by * tiles.by; }
  __device__ uint32_t length(const Problem& p, const DenseArgs& a, uint32_t n) const {
    const uint32_t all = batch * units.by;
    uint32_t unit = by_tile ? n % all : tiles.divide(n), tile = by_tile ? n / all : tiles.rest(n);
    if (falling) tile = tiles.by - 1 - tile;
    const int row = int(pieces.divide(tile));
    uint32_t sum = 0;
    for (uint32_t g = 0; g < group; ++g) {
      const int head = int(units.rest(unit) * group + g);
      const BlockList list{p.mask.blocks, a.row<const int32_t>(begin, int(units.divide(unit)), 0, head), nullptr};
      sum += uint32_t(list.count(row));
    }
    return sum;
  }
};

// By one block of kThreads.
template <int kThreads>
__device__ inline void find_order(const ListOrder& order, const Problem& p, const DenseArgs& a) {
  put_by_length<kThreads>(
      int(order.count()), [](int n) { return n; }, [&](int n) { return order.length(p, a, uint32_t(n)); },
      [&](int place, int n) { order.place[place] = n; });
}

}  // namespace attune::sm80
