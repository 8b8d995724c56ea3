// SPDX-License-Identifier: Apache-2.0
// What a worker of a backward on the CPU works in.
#pragma once
#include "attention/cpu/formula/lanes.h"
#include "attention/cpu/query_rows.h"

namespace attune::cpu {

// Units per KV head.
inline int units_of_keys(const Problem& p) { return by_head(p) ? p.heads_q / p.heads_kv : 1; }

// Query tiles that meet a key tile together. With a list, a tile is a block; several tiles then share the accumulators,
// which are loaded and stored once per product.
inline constexpr int kMaxTiles = 8;
inline constexpr int kQueries = 128;  // in all tiles together, for 4-byte elements
inline int tiles_of(const Problem& p, const CpuKernels& m) {
  if (!by_head(p)) return 1;
  return std::clamp(kQueries * 4 / m.operand_bytes / std::min(p.mask.blocks.q, p.len_q), 1, kMaxTiles);
}

struct Scratch {
  std::byte *k_q, *v_q, *k_v;        // a key tile: as panels for S and dP, and as a tile for dQ
  Queries queries;                   // a query tile
  float *dk, *dv, *dq;               // accumulators: of the key tile, and of all rows of the KV head
  float *s, *dp, *plain, *plain_dp;  // of a panel of keys
  std::byte *p, *ds, *ds_t;          // ds_t: panels of queries, each with all keys of the tile
  float *lse, *delta, *row;
  const void** rows;
  General* scores;
  Unit* units;
  bool* left_out;                    // keys of the tile that are not finite
  FormulaLanes::Scratch formula;
};

// Rows of a unit's dQ. With a list, every query tile begins a new panel.
inline int64_t rows_of_dq(const Plan& plan, const CpuKernels& m, const PackedQueries& queries) {
  const Problem& p = plan.problem;
  return by_head(p) ? queries.slots * plan.tile_q : round_up(int64_t(p.len_q) * group(p), m.rows);
}

inline Scratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m, const PackedQueries& queries) {
  const Problem& p = plan.problem;
  const size_t tk = size_t(plan.tile_k), tq = size_t(plan.tile_q), rows = size_t(m.rows),
               all = tq * size_t(tiles_of(p, m)), bytes = size_t(m.operand_bytes);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  const auto operand = [&](size_t count) { return ws.take<std::byte>(count * bytes); };
  Scratch x{};
  x.k_q = operand(tk * dim_qk), x.v_q = operand(tk * dim_v), x.k_v = operand(tk * dim_qk);
  x.queries.q_k = operand(tq * dim_qk), x.queries.q_v = operand(tq * dim_qk);
  x.queries.do_k = operand(tq * dim_v), x.queries.do_v = operand(tq * dim_v), x.queries.capacity = plan.tile_q;
  x.dk = ws.take<float>(tk * dim_qk), x.dv = ws.take<float>(tk * dim_v);
  x.dq = ws.take<float>(size_t(rows_of_dq(plan, m, queries) * units_of_keys(p)) * dim_qk);
  x.s = ws.take<float>(all * rows), x.dp = ws.take<float>(all * rows);
  x.plain = ws.take<float>(tq * rows), x.plain_dp = ws.take<float>(tq * rows);
  x.p = operand(all * rows), x.ds = operand(all * rows), x.ds_t = operand(all * tk);
  x.lse = ws.take<float>(all), x.delta = ws.take<float>(all), x.row = ws.take<float>(rows * std::max(dim_qk, dim_v));
  x.rows = ws.take<const void*>(std::max(tk, tq));
  x.scores = ws.take<General>(size_t(p.heads_q / p.heads_kv));
  x.units = ws.take<Unit>(size_t(units_of_keys(p)));
  x.left_out = ws.take<bool>(tk);
  x.formula = FormulaLanes::carve(ws, p);
  return x;
}

}  // namespace attune::cpu
