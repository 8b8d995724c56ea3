// SPDX-License-Identifier: Apache-2.0
// What a worker of a forward on the CPU works in, and how rows and keys are divided.
#pragma once
#include "attention/cpu/formula/lanes.h"
#include "attention/cpu/unit.h"

namespace attune::cpu {

// Scratch of one worker; counted in `shape` and placed in `run`.
struct ForwardScratch {
  std::byte *q, *k, *v, *p;
  float *o, *s, *plain, *ref, *sum, *row;
  const void** rows;
  General* scores;
  FormulaLanes::Scratch formula;
};

inline ForwardScratch carve(Workspace& ws, const Plan& plan, const CpuKernels& m) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(plan.tile_q), tile = size_t(m.tile), bytes = size_t(m.operand_bytes);
  const size_t dim_qk = size_t(padded(m, p.dim_qk)), dim_v = size_t(padded(m, p.dim_v));
  return {.q = ws.take<std::byte>(rows * dim_qk * bytes),
          .k = ws.take<std::byte>(tile * dim_qk * bytes),
          .v = ws.take<std::byte>(tile * dim_v * bytes),
          .p = ws.take<std::byte>(tile * m.rows * bytes),
          .o = ws.take<float>(rows * dim_v),
          .s = ws.take<float>(tile * m.rows),
          .plain = ws.take<float>(tile * m.rows),
          .ref = ws.take<float>(rows),
          .sum = ws.take<float>(rows),
          .row = ws.take<float>(m.rows * dim_v),
          .rows = ws.take<const void*>(tile),
          .scores = ws.take<General>(group(p)),
          .formula = FormulaLanes::carve(ws, p)};
}

// Consecutive keys within a tile. A band has one segment per tile, a block list several.
struct Segment {
  int key, count, at;   // first key, count, and offset in the tile (a multiple of m.keys)
  int entry = 0;        // in the block list
  int64_t packed = -1;  // slot in the packed keys; -1: in the tile, packed for this task
};
struct Range { int first, last; };  // range of a segment, in multiples of m.keys

inline int task_rows(const Plan& plan) {
  return by_head(plan.problem) ? std::min(plan.problem.mask.blocks.q, plan.tile_q) : plan.tile_q;
}

// Tasks of a unit with up to `len_q` queries: row blocks, or with a list the tiles of each query block.
struct Tasks {
  int64_t size, tiles_per_block, count;

  Tasks(const Plan& plan, int len_q) : size(task_rows(plan)), tiles_per_block(1) {
    const Problem& p = plan.problem;
    if (by_head(p)) tiles_per_block = ceil_div(std::min(p.mask.blocks.q, len_q), size);
    count = by_head(p) ? ceil_div(len_q, p.mask.blocks.q) * tiles_per_block : ceil_div(int64_t(len_q) * group(p), size);
  }
  // The rows of task n in a unit of `rows` rows.
  Rows rows_of(const Problem& p, int64_t n, int rows) const {
    if (!by_head(p)) return {clamp(n * size, 0, rows), clamp((n + 1) * size, 0, rows)};
    const int64_t block = n / tiles_per_block * p.mask.blocks.q, first = block + n % tiles_per_block * size;
    return {clamp(first, 0, rows), clamp(std::min(first + size, block + p.mask.blocks.q), 0, rows)};
  }
};

}  // namespace attune::cpu
