// SPDX-License-Identifier: Apache-2.0
// Query tiles of a backward as operands, packed one tile at a time or, with a block list, all in advance.
#pragma once
#include "attention/cpu/finite.h"
#include "attention/cpu/unit.h"

namespace attune::cpu {

// Operands of a query tile, for S, dK, dP and dV.
struct Queries {
  std::byte *q_k, *q_v, *do_k, *do_v;
  int capacity;
};

// With a block list, a key block has too few rows to amortize the packing of its queries. All queries are packed once
// in advance, one tile after the other, of blocks that begin with a tile of their own.
struct PackedQueries {
  Queries first{};                          // of the first tile
  int64_t q_bytes = 0, do_bytes = 0;        // per tile
  int64_t size = 0, tiles_per_block = 1;    // queries and tiles per block
  int64_t slots = 0;                        // tiles per head

  Queries at(const Problem& p, int b, int h, int64_t slot) const {
    const int64_t n = (int64_t(b) * p.heads_q + h) * slots + slot;
    return {first.q_k + n * q_bytes, first.q_v + n * q_bytes, first.do_k + n * do_bytes, first.do_v + n * do_bytes,
            first.capacity};
  }
  // The rows of a tile within a unit.
  Rows rows(const Plan& plan, const Unit& u, int64_t slot) const {
    const int64_t block = slot / tiles_per_block * size, begin = block + slot % tiles_per_block * plan.tile_q;
    return {int(std::min<int64_t>(begin, u.rows())),
            int(std::min({begin + plan.tile_q, block + size, int64_t(u.rows())}))};
  }
};

inline PackedQueries carve_queries(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  if (!by_head(p)) return {};
  PackedQueries all{.size = p.mask.blocks.q};
  all.tiles_per_block = ceil_div(std::min<int64_t>(all.size, p.len_q), plan.tile_q);
  all.slots = ceil_div(p.len_q, all.size) * all.tiles_per_block;
  all.first.capacity = int(round_up(std::min({p.mask.blocks.q, p.len_q, plan.tile_q}), m.keys));
  all.q_bytes = packed_bytes(m, all.first.capacity, p.dim_qk);
  all.do_bytes = packed_bytes(m, all.first.capacity, p.dim_v);
  const int64_t every = int64_t(p.batch) * p.heads_q * all.slots;
  const auto operand = [&](int64_t bytes) { return ws.take<std::byte>(size_t(every * bytes)); };
  all.first.q_k = operand(all.q_bytes), all.first.q_v = operand(all.q_bytes);
  all.first.do_k = operand(all.do_bytes), all.first.do_v = operand(all.do_bytes);
  return all;
}

constexpr int kMaxPanels = 80;  // per query tile, for all instruction sets

// Consecutive rows of a unit, as operands.
struct QueryTile {
  Rows rows, open;            // of the unit; those that see any of the keys
  int n = 0, at = 0;          // queries including padding; offset in lse, delta and ds_t
  Queries packed{};
  Panels panels;              // of dS and dQ
  float* dq = nullptr;
  int entry = 0;              // in the block list
  int seen = 0;               // leading key panels that any of the queries sees
  Rows reads[kMaxPanels]{};   // keys of the tile that dQ of a panel reads, in whole steps
  bool large_logits = false;  // some query has a large log-sum-exp
};

// Packs rows of a unit as a query tile of n rows; those beyond `tile`, or with left_out(row), are 0.
template <class F>
void pack_queries(const Problem& p, const CpuKernels& m, const Unit& u, Rows tile, int n, const void** rows,
                  const Queries& to, F left_out) {
  const int count = tile.last - tile.first;
  const auto gather = [&](Role role) {
    u.addresses(role, tile.first, count, rows);
    std::fill(rows + count, rows + n, kZeroRow);
    for (int r = 0; r < count; ++r)
      if (left_out(tile.first + r)) rows[r] = kZeroRow;
  };
  gather(Role::q);
  m.pack_k(rows, n, p.dim_qk, to.q_k);
  m.pack_v(rows, n, p.dim_qk, to.q_v, to.capacity);
  gather(Role::d_out);
  m.pack_k(rows, n, p.dim_v, to.do_k);
  m.pack_v(rows, n, p.dim_v, to.do_v, to.capacity);
}

}  // namespace attune::cpu
