// SPDX-License-Identifier: Apache-2.0
// Code shared by the CPU passes: the rows of a unit of work, the addresses of its keys, and scores on plain rows.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <new>
#include <numeric>

#include "core/large_logit.h"
#include "core/score.h"
#include "machine/cpu/kernels.h"
#include "machine/cpu/threads.h"
#include "plan/backend.h"

namespace attune::cpu {

// Returns a function from worker to the result of carve(workspace). The workers' scratch lies one after another, as
// counted in `shape`.
template <class Carve>
auto by_worker(Workspace ws, Carve carve) {
  return [=](int worker) {
    Workspace own = ws;
    for (int before = 0; before < worker; ++before) carve(own);
    return carve(own);
  };
}
// The counterpart in `shape`: the workspace counted so far, and the scratch of every worker.
template <class Carve>
Status count_workspace(Plan& plan, Workspace& count, Carve carve) {
  for (int n = 0; n < plan.device.units; ++n) carve(count);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// The query heads of one KV head (a GQA group) in one sequence. Their rows are ordered (position, head), so that they
// share packed tiles and panels; with one query per head they share a single panel. Block lists differ by head, so with
// a list a unit is one query head.
struct Unit {
  const Problem* problem;
  const Args* args;
  int b, head_kv;
  int head_q, group;      // first query head, and their number
  Sequence seq;
  const General* scores;  // one per head of the unit

  int rows() const { return seq.len_q * group; }
  // Avoids a division for a single head, since these functions are called per row.
  int position(int row) const { return group == 1 ? row : row / group; }
  int head(int row) const { return group == 1 ? head_q : head_q + row % group; }
  const General& score(int row) const { return scores[row % group]; }
  char* address(Role r, int row) const {
    return row_address((*args)[r], seq.q_batch, seq.q_first + position(row), head(row));
  }
  // Addresses of n rows, starting at `row`.
  template <class Pointer>
  void addresses(Role r, int row, int n, Pointer* to) const {
    char* at = n > 0 ? address(r, row) : nullptr;
    const int64_t step = (*args)[r].stride.seq * size_of((*args)[r].dtype);
    for (int i = 0; i < n; ++i, at += step) to[i] = group == 1 ? at : address(r, row + i);
  }
};

inline bool by_head(const Problem& p) { return p.mask.blocks.q > 0; }
inline int units(const Problem& p) { return by_head(p) ? p.heads_q : p.heads_kv; }
inline int group(const Problem& p) { return by_head(p) ? 1 : p.heads_q / p.heads_kv; }

// The longest actual sequence: lengths in a problem are only bounds, and may be much larger.
struct Longest { int q = 0, k = 0; };
inline Longest longest(const Problem& p, const Args& a) {
  Longest most;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence(p, a, b);
    most = {std::max(most.q, seq.len_q), std::max(most.k, seq.len_k)};
  }
  return most;
}

// Unit `n` of sequence b; `scores` has room for group(p).
inline Unit unit_of(const Problem& p, const Args& a, int b, int n, General* scores) {
  const int heads = group(p);
  Unit u{&p, &a, b, by_head(p) ? n / (p.heads_q / p.heads_kv) : n, n * heads, heads, sequence(p, a, b), scores};
  for (int h = 0; h < heads; ++h) ::new (scores + h) General(p, a, u.seq, b, u.head_q + h);
  return u;
}

inline BlockList list_of(const Problem& p, const Args& a, int b, int head) {
  return {p.mask.blocks, a.row<const int32_t>(Role::block_begin, b, 0, head), a.row<const int32_t>(Role::block_column)};
}

// Address of key j of the unit, in k, v or their gradients.
inline char* key_address(const Unit& u, Role r, int64_t j) {
  const Tensor& t = (*u.args)[r];
  const int64_t at = u.seq.k_first + j;
  if (u.problem->keys != KeySource::paged) return row_address(t, u.seq.k_batch, at, u.head_kv);
  const int32_t* table = u.args->row<const int32_t>(Role::page_table, u.b);
  const int page = u.problem->page;
  return row_address(t, clamp(table[at / page], 0, t.extent.batch - 1), at % page, u.head_kv);
}

// Addresses of keys [first, first + n).
inline void gather_keys(const Unit& u, Role r, int first, int n, const void** rows) {
  const Tensor& t = (*u.args)[r];
  if (u.problem->keys == KeySource::paged) {
    for (int j = 0; j < n; ++j) rows[j] = key_address(u, r, first + j);
    return;
  }
  const char* at = key_address(u, r, first);
  const int64_t step = t.stride.seq * size_of(t.dtype);
  for (int j = 0; j < n; ++j, at += step) rows[j] = at;
}

// A natural logit in base 2. A finite one stays finite: a mask of -3.4e38, the least f32, is not a hidden key, so a row
// that has nothing else sees all its keys alike.
inline float in_base_2(float x) {
  return std::fabs(x) < INFINITY ? std::clamp(x * kLog2e, -kLargestLogit, kLargestLogit) : x;
}
inline float in_base_2(double x) {
  constexpr double kMost = kLargestLogit;
  const double y = x * double(kLog2e);
  return float(std::fabs(x) < INFINITY ? std::clamp(y, -kMost, kMost) : y);
}

// The end of a row; its log-sum-exp is the largest f32 where in_base_2() cut its logits.
inline RowEnd row_end(const SoftmaxRow& row) {
  constexpr float kCut = kLargestLogit * kLn2 * 0.9999f;
  RowEnd end(row);
  if (std::fabs(end.lse) > kCut && std::isfinite(end.lse)) end.lse = std::copysign(FLT_MAX, end.lse);
  return end;
}

// Converts dot products to base-2 logits: row i against n keys from j on. `entry`: their index in the block list.
inline void logits(const General& g, int entry, int i, int j, int n, float* x) {
  for (int k = 0; k < n; ++k) x[k] *= g.scale;
  if (g.softcap > 0.f)
    for (int k = 0; k < n; ++k) x[k] = g.softcap * std::tanh(x[k] / g.softcap);
  if (g.bias)
    for (int k = 0; k < n; ++k) x[k] += bias_at(*g.bias, g.batch, i, g.head, j + k);
  if (g.block_bias)
    for (int k = 0; k < n; ++k) x[k] += g.block_bias[entry];
  if (g.slope != 0.f)
    for (int k = 0; k < n; ++k) x[k] -= g.slope * std::fabs(float(g.band.ahead(i, j + k)));
  for (int k = 0; k < n; ++k) x[k] = in_base_2(x[k]);
}

// score.logit(), with a finite logit for a finite natural one.
inline float logit_of(const Plain& score, float dot, int i, int j) { return score.logit(dot, i, j); }
inline float logit_of(const General& score, float dot, int i, int j) {
  const float x = score.logit(dot, i, j);
  if (!std::isinf(x)) [[likely]] return x;
  logits(score, score.entry, i, j, 1, &dot);
  return dot;
}

inline const CpuKernels& kernels_of(const Problem& p, const Device& d) { return *best_kernels(p.dtype.q, d.features); }

// Divides rows into panels. If an instruction set has two panel sizes, the larger come first and the smaller fill the
// remainder: 64 rows are 4 x 12 and 2 x 8. The total never exceeds that of large panels alone.
class Panels {
 public:
  Panels() = default;
  Panels(const CpuKernels& m, int rows, bool mixed = true)
      : large_(&m), small_(mixed ? smaller_panels(m) : nullptr), many_large_(int(ceil_div(rows, m.rows))) {
    double best = double(many_large_) * m.rows;
    for (int n = 1; small_ && n <= m.rows && (n - 1) * small_->rows < rows; ++n) {
      const int large = int(ceil_div(std::max(0, rows - n * small_->rows), m.rows));
      const double cost = large * m.rows + n * small_->rows * kSmallPanel;
      if (cost < best) best = cost, many_large_ = large, many_small_ = n;
    }
  }
  int count() const { return many_large_ + many_small_; }
  const CpuKernels& operator[](int panel) const { return panel < many_large_ ? *large_ : *small_; }
  // First row of a panel.
  int first(int panel) const {
    if (panel <= many_large_) return panel * large_->rows;
    return large_rows() + (panel - many_large_) * small_->rows;
  }
  int rows() const { return first(count()); }
  int large_rows() const { return many_large_ * large_->rows; }

  // The nearest row at or before (at or after) this one where both a panel and a step of keys begin. If all rows form
  // whole steps of keys, the small panels also begin at one.
  int step_before(int row) const { return row / step(row) * step(row); }
  int step_behind(int row) const {
    const int before = step_before(row);
    return before == row ? row : before + step(row);
  }

 private:
  static constexpr double kSmallPanel = 1.05;  // cost of a row in a smaller panel
  int step(int row) const {
    return std::lcm(row < large_rows() || !many_small_ ? large_->rows : small_->rows, large_->keys);
  }
  const CpuKernels *large_ = nullptr, *small_ = nullptr;
  int many_large_ = 0, many_small_ = 0;
};

// Bytes of n packed keys of a block. Blocks of 64 keys would be a multiple of 16 KiB long, and the same dims of all
// blocks in a product would share a few L1 sets; the padding offsets each block.
inline int64_t packed_bytes(const CpuKernels& m, int n, int dim) {
  return round_up(dim, m.dim_step) * n * m.operand_bytes + 1024;
}

inline int padded(const CpuKernels& k, int dim) { return int(round_up(dim, k.dim_step)); }

// Packed operands are opaque bytes to the algorithm.
inline std::byte* at(void* operand, const CpuKernels& k, int64_t element) {
  return static_cast<std::byte*>(operand) + element * k.operand_bytes;
}

// Prefetches memory into L2. The empty asm statement is for g++ 12, which treats a function that only prefetches as
// having no effect and drops its calls.
inline void fetch(const void* from, int64_t bytes) {
  const char* at = static_cast<const char*>(from);
  for (int64_t n = 0; n < bytes; n += 64) __builtin_prefetch(at + n, 0, 2);
  asm volatile("");
}

// o += p v over runs of keys, in order.
inline void accumulate(const CpuKernels& m, const std::byte* p, const KeyRun* runs, int count, int capacity, int dim,
                       float* o) {
  if (m.accumulate_runs) return m.accumulate_runs(p, runs, count, capacity, dim, o);
  for (int n = 0; n < count; p += int64_t(runs[n].n) * m.rows * m.operand_bytes, ++n)
    m.accumulate(p, runs[n].v, capacity, runs[n].first, runs[n].n, dim, o);
}

// Stores o[r] * factor[r] to rows at any addresses, in the kernels' dtype or f32; `row` is scratch for a panel.
inline void store_panel(const CpuKernels& m, DType t, const float* o, int dim, const float* factor, int n, float* row,
                        char* const* to) {
  if (t != DType::f32 && m.store) return m.store(o, dim, factor, n, to);
  const auto floats = [&](int r) { return reinterpret_cast<float*>(to[r]); };
  if (t == DType::f32) {
    const int64_t step = n > 1 ? floats(1) - floats(0) : 0;
    bool even = true;
    for (int r = 2; r < n; ++r) even &= floats(r) - floats(r - 1) == step;
    if (even) return m.unpack(o, dim, factor, n, floats(0), step);
  }
  m.unpack(o, dim, factor, n, row, dim);
  for (int r = 0; r < n; ++r) {
    if (t == DType::f32) std::copy_n(row + int64_t(r) * dim, dim, floats(r));
    else m.narrow(row + int64_t(r) * dim, dim, to[r]);
  }
}

// to[r] = f(r) for n rows.
template <class F>
void fill_each(int n, F f, int* to) {
  for (int r = 0; r < n; ++r) to[r] = f(r);
}
// The same if f grows by 0 or 1 from row to row: usually its two ends determine all values.
template <class F>
void fill_steps(int n, F f, int* to) {
  const int first = f(0), last = f(n - 1), step = last == first ? 0 : 1;
  if (last - first != step * (n - 1)) return fill_each(n, f, to);
  for (int r = 0; r < n; ++r) to[r] = first + step * r;
}

// P stays below 2^8, which is safe in f32 and bf16 alike, and most tiles need no rescale.
inline constexpr float kLazy = 8.f;

// Moves the integer reference of a row if a base-2 logit exceeds it by more than kLazy. Returns the factor for the
// existing sums: 1 if it did not move, 0 the first time.
inline float raise(float& ref, float top) {
  if (!(top > ref + kLazy)) return 1.f;
  const float from = ref;
  ref = std::ceil(top);
  return from == -INFINITY ? 0.f : std::exp2(from - ref);
}

// Checks common to all CPU kernels. `who` begins each message.
Status supports(std::string_view who, Pass, const Problem&, const Device&);

}  // namespace attune::cpu
