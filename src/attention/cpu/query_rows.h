// Query tiles of a backward as operands, packed for one tile or, with a list of blocks, all of them before.
#pragma once
#include "attention/cpu/unit.h"

namespace attune::cpu {

alignas(64) inline constexpr char kZeroRow[256 * sizeof(float)] = {};  // of any dtype

// Operands of a query tile: for S, dK, dP, dV.
struct Queries {
  std::byte *q_k, *q_v, *do_k, *do_v;
  int room;
};

// With a list, a block of keys has few rows to pay for the packing of its queries: all are packed once, before, in
// pieces of the blocks, each a query tile.
struct PackedQueries {
  Queries first{};                      // of all
  int64_t q_bytes = 0, do_bytes = 0;    // of a piece
  int64_t size = 0, pieces = 1, slots = 0;  // queries of a block, pieces of a block, of a head

  Queries at(const Problem& p, int b, int h, int64_t slot) const {
    const int64_t n = (int64_t(b) * p.heads_q + h) * slots + slot;
    return {first.q_k + n * q_bytes, first.q_v + n * q_bytes, first.do_k + n * do_bytes, first.do_v + n * do_bytes,
            first.room};
  }
  // Those of a piece, in a unit.
  Rows rows(const Plan& plan, const Unit& u, int64_t slot) const {
    const int64_t block = slot / pieces * size, begin = block + slot % pieces * plan.tile_q;
    return {int(std::min<int64_t>(begin, u.rows())),
            int(std::min({begin + plan.tile_q, block + size, int64_t(u.rows())}))};
  }
};

inline PackedQueries carve_queries(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  if (!by_head(p)) return {};
  PackedQueries all{.size = p.mask.blocks.q};
  all.pieces = ceil_div(std::min<int64_t>(all.size, p.len_q), plan.tile_q);
  all.slots = ceil_div(p.len_q, all.size) * all.pieces;
  all.first.room = int(round_up(std::min({p.mask.blocks.q, p.len_q, plan.tile_q}), m.keys));
  all.q_bytes = packed_bytes(m, all.first.room, p.dim_qk), all.do_bytes = packed_bytes(m, all.first.room, p.dim_v);
  const int64_t every = int64_t(p.batch) * p.heads_q * all.slots;
  const auto operand = [&](int64_t bytes) { return ws.take<std::byte>(size_t(every * bytes)); };
  all.first.q_k = operand(all.q_bytes), all.first.q_v = operand(all.q_bytes);
  all.first.do_k = operand(all.do_bytes), all.first.do_v = operand(all.do_bytes);
  return all;
}

constexpr int kMaxPanels = 80;  // of a query tile, on any machine

// Rows of a unit that follow each other, as operands.
struct QueryTile {
  Rows rows, open;   // of the unit; those of them that see any of the keys
  int n = 0, at = 0; // queries, with those that fill it up; how many come before in lse, delta and ds_t
  Queries packed{};
  Panels panels;     // of dS and dQ
  float* dq = nullptr;
  int entry = 0;     // of the list of blocks
  int seen = 0;      // panels of keys, from the first on, that any of the queries sees
  Rows reads[kMaxPanels]{};  // keys of the tile that dQ of a panel takes, in whole steps
  bool large_logits = false;  // some query's lse is
};

// Rows of a unit as a query tile of n rows; those beyond `tile` are 0.
inline void pack_queries(const Problem& p, const CpuKernels& m, const Unit& u, Rows tile, int n, const void** rows,
                  const Queries& to) {
  const int count = tile.last - tile.first;
  u.addresses(Role::q, tile.first, count, rows);
  std::fill(rows + count, rows + n, kZeroRow);
  m.pack_k(rows, n, p.dim_qk, to.q_k);
  m.pack_v(rows, n, p.dim_qk, to.q_v, to.room);
  u.addresses(Role::d_out, tile.first, count, rows);
  m.pack_k(rows, n, p.dim_v, to.do_k);
  m.pack_v(rows, n, p.dim_v, to.do_v, to.room);
}

}  // namespace attune::cpu
