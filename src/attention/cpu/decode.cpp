// SPDX-License-Identifier: Apache-2.0
// For each tile of keys, for up to four rows at a time:
//   row_scores, logits, hide, raise, row_weights, row_accumulate
// A row never touches a key that it does not see: keys that all rows see are added for all of them, the others row by
// row, in ascending order.
#include "attention/cpu/decode.h"

#include <atomic>

#include "attention/cpu/append.h"
#include "attention/cpu/splits.h"

namespace attune::cpu {
namespace {

constexpr int kTogether = 4;  // rows of row_scores and row_accumulate
// A sixth of a panel's rows: up to that many, reading keys in place is at least as fast as packing them.
constexpr int kShareOfPanel = 6;
constexpr int kTile = 128;    // keys; a multiple of 16. K and V of a tile are 64 KiB at d64 in f32
constexpr int kVector = 16;   // row_weights takes multiples

// Scratch of one worker.
struct Scratch {
  float *q, *o, *s, *ref, *sum;
  const void **k, **v;
  General* scores;
};

int rows_of(const Problem& p) { return p.len_q * group(p); }

Scratch carve(Workspace& ws, const Problem& p) {
  const size_t rows = size_t(rows_of(p));
  return {.q = ws.take<float>(rows * size_t(p.dim_qk)),
          .o = ws.take<float>(rows * size_t(p.dim_v)),
          .s = ws.take<float>(kTogether * kTile),
          .ref = ws.take<float>(rows),
          .sum = ws.take<float>(rows),
          .k = ws.take<const void*>(kTile),
          .v = ws.take<const void*>(kTile),
          .scores = ws.take<General>(size_t(group(p)))};
}

// All rows of a unit.
class Task {
 public:
  Task(const Problem& p, const Unit& unit, const CpuKernels& m, const Scratch& scratch)
      : p_(p), u_(unit), m_(m), x_(scratch), walk_{unit.seq.band, unit.seq.len_k, kTile}, general_(needs_general(p)) {}

  void run(int split, int splits, const SplitRows& partial) {
    start();
    const Rows queries{0, u_.seq.len_q};
    const int64_t tiles = walk_.tiles(queries);
    for (int64_t n = tiles * split / splits; n < tiles * (split + 1) / splits; ++n) {
      const Tile t = walk_.tile(queries, int(n));
      if (t.first >= t.last) continue;
      gather_keys(u_, Role::k, t.first, t.last - t.first, x_.k);
      gather_keys(u_, Role::v, t.first, t.last - t.first, x_.v);
      for (int row = 0; row < u_.rows(); row += kTogether) step(row, std::min(kTogether, u_.rows() - row), t);
    }
    for (int row = 0; row < u_.rows(); ++row) store(row, splits > 1 ? &partial : nullptr, split);
  }

 private:
  void start() {
    const int rows = u_.rows();
    const float scale = general_ ? 1.f : scale_of(p_, *u_.args) * kLog2e;
    for (int row = 0; row < rows; ++row) {
      float* q = x_.q + row * p_.dim_qk;
      m_.widen(u_.address(Role::q, row), p_.dim_qk, q);
      for (int d = 0; d < p_.dim_qk; ++d) q[d] *= scale;
    }
    std::fill_n(x_.o, rows * p_.dim_v, 0.f);
    std::fill_n(x_.ref, rows, -INFINITY);
    std::fill_n(x_.sum, rows, 0.f);
  }

  // Rows [row, row + count) against a tile.
  void step(int row, int count, const Tile& t) {
    const int begin = std::max(t.first, walk_.first_key(u_.position(row)));
    const int n = std::min(t.last, walk_.last_key(u_.position(row + count - 1))) - begin;
    if (n <= 0) return;
    m_.row_scores(x_.q + row * p_.dim_qk, count, x_.k + begin - t.first, n, p_.dim_qk, x_.s, kTile);
    Rows seen[kTogether], all{0, n};  // counted from `begin`
    for (int r = 0; r < count; ++r) {
      const int i = u_.position(row + r), first = clamp(walk_.first_key(i) - begin, 0, n);
      seen[r] = {first, clamp(walk_.last_key(i) - begin, first, n)};
      all = {std::max(all.first, seen[r].first), std::min(all.last, seen[r].last)};
      if (seen[r].first < seen[r].last) soften(row + r, x_.s + r * kTile, seen[r], begin, n);
    }
    const auto add = [&](int r, int many, int first, int last) {
      if (first < last)
        m_.row_accumulate(x_.s + r * kTile + first, many, kTile, x_.v + begin - t.first + first, last - first, p_.dim_v,
                          x_.o + (row + r) * p_.dim_v);
    };
    if (all.first >= all.last) {
      for (int r = 0; r < count; ++r) add(r, 1, seen[r].first, seen[r].last);
      return;
    }
    for (int r = 0; r < count; ++r) add(r, 1, seen[r].first, all.first);
    add(0, count, all.first, all.last);
    for (int r = 0; r < count; ++r) add(r, 1, all.last, seen[r].last);
  }

  // Converts dot products of a row with n keys from `begin` on to weights.
  void soften(int row, float* s, Rows seen, int begin, int n) {
    const int i = u_.position(row), count = seen.last - seen.first;
    if (general_) logits(u_.score(row), 0, i, begin + seen.first, count, s + seen.first);
    std::fill(s, s + seen.first, -INFINITY);
    std::fill(s + seen.last, s + round_up(n, kVector), -INFINITY);
    float& ref = x_.ref[row];
    const bool empty = ref == -INFINITY;
    const float factor = raise(ref, largest(s + seen.first, count));
    if (factor != 1.f && !empty) {
      x_.sum[row] *= factor;
      for (int d = 0; d < p_.dim_v; ++d) x_.o[row * p_.dim_v + d] *= factor;
    }
    x_.sum[row] += m_.row_weights(s, int(round_up(n, kVector)), ref == -INFINITY ? 0.f : ref);
    if (p_.has(Option::dropout))
      for (int k = seen.first; k < seen.last; ++k) s[k] *= u_.score(row).keep(i, begin + k);
  }
  // Without NaN, which weights propagate. Eight partial results, so that it vectorizes.
  static float largest(const float* x, int n) {
    float lane[8];
    std::fill_n(lane, 8, -INFINITY);
    int j = 0;
    for (; j + 8 <= n; j += 8)
      for (int e = 0; e < 8; ++e) lane[e] = x[j + e] > lane[e] ? x[j + e] : lane[e];
    for (; j < n; ++j) lane[0] = x[j] > lane[0] ? x[j] : lane[0];
    return *std::max_element(lane, lane + 8);
  }

  void store(int row, const SplitRows* partial, int split) {
    RowEnd end = row_end({x_.ref[row], x_.sum[row]});
    float *lse = reinterpret_cast<float*>(u_.address(Role::lse, row)), *o = x_.o + row * p_.dim_v;
    if (!partial && p_.has(Option::accumulate)) end.merge_running(*lse);
    if (!partial && p_.has(Option::sink)) end.merge_sink(*u_.args->row<const float>(Role::sinks, 0, 0, u_.head(row)));
    for (int d = 0; d < p_.dim_v; ++d) o[d] *= end.now;
    if (!partial) {
      if (u_.args->given(Role::lse)) *lse = end.lse;
      return store_row(m_, p_, o, end.before, u_.address(Role::out, row));
    }
    const int64_t head = int64_t(u_.b) * p_.heads_q + u_.head(row);
    const int64_t at = split * partial->rows + head * p_.len_q + u_.position(row);
    partial->lse[at] = end.lse;
    std::copy_n(o, p_.dim_v, partial->out + at * p_.dim_v);
  }

  const Problem& p_;
  const Unit& u_;
  const CpuKernels& m_;
  const Scratch& x_;
  const BandWalk walk_;
  const bool general_;
};

}  // namespace

bool is_decode(const Problem& p, const CpuKernels& m) {
  const int most = std::max(kTogether, m.rows / kShareOfPanel);
  return m.row_scores && !by_head(p) && !p.variant.text[0] && p.reproducible != Reproducible::batch &&
         p.len_q <= most / group(p);
}

Status shape_decode(Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t tasks = int64_t(p.batch) * p.heads_kv;
  plan.kernel = kDecodeKernel, plan.tile_q = rows_of(p), plan.tile_k = kTile;
  if (tasks < plan.device.units)
    plan.splits = int(std::clamp<int64_t>(ceil_div(2 * plan.device.units, tasks), 1, ceil_div(p.len_k, kTile)));
  Workspace count;
  carve_rotated(count, p);
  carve_splits(count, plan);
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, p); });
}

Status attend_decode(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Problem& p = plan.problem;
  const CpuKernels& m = kernels_of(p, plan.device);
  const SplitRows partial = carve_splits(ws, plan);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, p); });
  std::atomic<int64_t> next{0};
  const auto each = [&](int64_t tasks, auto f) {
    next = 0;
    auto work = [&](int worker) {
      const Scratch scratch = scratch_of(worker);
      for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) f(scratch, n);
    };
    parallel(int(std::min<int64_t>(plan.device.units, tasks)), work);
  };
  each(int64_t(p.batch) * p.heads_kv * plan.splits, [&](const Scratch& scratch, int64_t n) {
    const int64_t set = n / plan.splits;
    const Unit unit = unit_of(p, a, int(set / p.heads_kv), int(set % p.heads_kv), scratch.scores);
    if (unit.rows() > 0) Task(p, unit, m, scratch).run(int(n % plan.splits), plan.splits, partial);
  });
  if (plan.splits == 1) return Status::good();
  each(int64_t(p.batch) * p.heads_q, [&](const Scratch& scratch, int64_t n) {
    merge_splits(plan, a, m, partial, scratch.o, int(n / p.heads_q), int(n % p.heads_q));
  });
  return Status::good();
}

}  // namespace attune::cpu
