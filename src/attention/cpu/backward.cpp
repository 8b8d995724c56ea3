// SPDX-License-Identifier: Apache-2.0
// Gradients on the CPU: what is supported, the tiles, and the tasks of a run (backward_task.h).
#include <atomic>
#include <numeric>

#include "attention/cpu/backward_task.h"
#include "attention/cpu/block_lists.h"

namespace attune {
namespace {

using namespace cpu;

Status supports(const Problem& p, const Device& d) {
  if (Status s = cpu::supports("cpu_backward", Pass::backward, p, d); !s.ok()) return s;
  if (p.dtype.out != p.dtype.q)
    return Status::unsupported("cpu_backward: out is ", name(p.dtype.out), " and q is ", name(p.dtype.q),
                      "; both must be the same");
  return Status::good();
}

Status shape(Plan& plan, const Planner&) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device);
  const int step = std::lcm(m.rows, m.keys);
  const int narrow = m.operand_bytes == 2 ? 2 : 1;
  // In 16 bit, two tiles suit a short sequence better than one: under a causal mask the second meets half the queries.
  plan.tile_k = int(round_up(std::min(p.len_k, p.len_k > 264 * narrow ? 264 * narrow : 264), step));
  plan.tile_q = int(round_up(std::min<int64_t>(int64_t(p.len_q) * group(p), 132 * narrow), step));
  if (by_head(p)) {  // equal tiles of a block
    const int size = std::min(p.mask.blocks.q, p.len_q);
    plan.tile_q = int(round_up(ceil_div(size, ceil_div(size, 128 * narrow)), step));
    plan.tile_k = int(round_up(std::min({p.len_k, p.mask.blocks.k, 240 * narrow}), step));
  }
  const int64_t sets = int64_t(p.batch) * p.heads_kv;
  if (sets < plan.device.units && p.reproducible != Reproducible::batch && !p.has(Option::bias) &&
      !(p.has(Option::block_bias) && p.reproducible != Reproducible::no))
    plan.splits = int(std::clamp<int64_t>(ceil_div(plan.device.units, sets), 1, KeyTiles(plan, p.len_k).count));
  Workspace count;
  carve_rows(count, p);
  carve_partial(count, plan);
  const PackedQueries queries = carve_queries(count, plan, m);
  carve_list(count, p);
  carve_formula(count, p);
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan, m, queries); });
}

Status run(const Plan& plan, const Args& given, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  Args a = given;
  const CpuKernels& m = kernels_of(p, plan.device);
  const RowState rows = carve_rows(ws, p);
  const Partial partial = carve_partial(ws, plan);
  const PackedQueries queries = carve_queries(ws, plan, m);
  add_list_by_key(p, carve_list(ws, p), a);
  FormulaCall formula = carve_formula(ws, p);
  begin_formula(p, a, formula);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, plan, m, queries); });
  std::atomic<int64_t> next{0};
  const auto each = [&](int64_t tasks, int workers, auto f) {
    next = 0;
    auto work = [&](int worker) {
      const Scratch scratch = scratch_of(worker);
      for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(scratch, n);
    };
    parallel(int(std::min<int64_t>(workers, tasks)), work);
  };

  const int64_t heads = int64_t(p.batch) * p.heads_q;
  each(heads, plan.device.units,
       [&](const Scratch&, int64_t n) { prepare(p, a, m, rows, int(n / p.heads_q), int(n % p.heads_q)); });
  if (a.given(Role::d_sinks)) store_sinks(p, a, rows);
  // Clears keys that no sequence owns.
  for (const Role r : {Role::dk, Role::dv, Role::d_bias})
    if (a.given(r) && !accumulates(p) && (r == Role::d_bias || !whole(p, a, a[r]))) clear(a[r]);

  if (queries.slots) each(heads * queries.slots, plan.device.units, [&](const Scratch& x, int64_t n) {
    const int64_t slot = n % queries.slots;
    const Unit u = unit_of(p, a, int(n / queries.slots / p.heads_q), int(n / queries.slots % p.heads_q), x.scores);
    const Rows tile = queries.rows(plan, u, slot);
    const int count = tile.last - tile.first;
    if (count > 0)
      pack_queries(p, m, u, tile, int(round_up(count, m.keys)), x.rows, queries.at(p, u.b, u.head_q, slot),
                   [](int) { return false; });
  });

  // If sequences share keys, one task handles all of them.
  const bool together = shares_keys(p, a);
  const KeyTiles tiles(plan, longest(p, a).k);
  const int64_t sequences = together ? 1 : p.batch;
  const bool one_worker = shares_bias(p, a) || (formula.sums_arrays() && p.reproducible != Reproducible::no);
  formula.alone = one_worker || plan.device.units == 1;
  each(sequences * p.heads_kv * plan.splits, one_worker ? 1 : plan.device.units,
       [&](const Scratch& x, int64_t n) {
         const int64_t split = n % plan.splits, set = n / plan.splits, head = set % p.heads_kv;
         for (int64_t b = together ? 0 : set / p.heads_kv; b < (together ? p.batch : set / p.heads_kv + 1); ++b) {
           Task task(plan, a, m, x, rows, queries, formula, int(b), int(head));
           task.run(tiles, tiles.count * split / plan.splits, tiles.count * (split + 1) / plan.splits);
           task.store_dq(partial.dq ? partial.dq + split * partial.rows * p.dim_qk : nullptr);
         }
       });
  store_formula(p, formula);
  if (plan.splits == 1 || !a.given(Role::dq)) return Status::good();

  each(heads, plan.device.units, [&](const Scratch& x, int64_t n) {
    add_splits(plan, a, m, partial, x.row, int(n / p.heads_q), int(n % p.heads_q));
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_backward{.name = "cpu_backward", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
