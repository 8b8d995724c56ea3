// Query tiles of a backward as operands, packed for one tile or, with a list of blocks, all of them before.
#pragma once
#include "attention/cpu.h"

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
  Queries first{};                // of all
  int64_t pieces = 1, slots = 0;  // of a block, of a head

  Queries at(const Problem& p, const CpuKernels& m, int b, int h, int64_t slot) const {
    const int64_t row = ((int64_t(b) * p.heads_q + h) * slots + slot) * first.room;
    const int64_t of_q = row * padded(m, p.dim_qk), of_o = row * padded(m, p.dim_v);
    return {cpu::at(first.q_k, m, of_q), cpu::at(first.q_v, m, of_q), cpu::at(first.do_k, m, of_o),
            cpu::at(first.do_v, m, of_o), first.room};
  }
};

inline PackedQueries carve_queries(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  if (!by_head(p)) return {};
  const int size = p.mask.blocks.q;
  PackedQueries all{.pieces = ceil_div(std::min(size, p.len_q), plan.tile_q)};
  all.slots = ceil_div(p.len_q, size) * all.pieces;
  all.first.room = int(round_up(std::min({size, p.len_q, plan.tile_q}), m.keys));
  const size_t rows = size_t(p.batch) * size_t(p.heads_q) * size_t(all.slots * all.first.room);
  const auto operand = [&](int dim) {
    return ws.take<std::byte>(rows * size_t(padded(m, dim)) * size_t(m.operand_bytes));
  };
  all.first.q_k = operand(p.dim_qk), all.first.q_v = operand(p.dim_qk);
  all.first.do_k = operand(p.dim_v), all.first.do_v = operand(p.dim_v);
  return all;
}

// Rows of a unit as a query tile of n rows; those beyond `tile` are 0.
inline void pack_queries(const Problem& p, const CpuKernels& m, const Unit& u, Rows tile, int n, const void** rows,
                  const Queries& to) {
  const int count = tile.last - tile.first;
  for (int r = 0; r < n; ++r) rows[r] = r < count ? u.address(Role::q, tile.first + r) : kZeroRow;
  m.pack_k(rows, n, p.dim_qk, to.q_k);
  m.pack_v(rows, n, p.dim_qk, to.q_v, to.room);
  for (int r = 0; r < n; ++r) rows[r] = r < count ? u.address(Role::d_out, tile.first + r) : kZeroRow;
  m.pack_k(rows, n, p.dim_v, to.do_k);
  m.pack_v(rows, n, p.dim_v, to.do_v, to.room);
}

}  // namespace attune::cpu
