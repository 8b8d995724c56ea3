// SPDX-License-Identifier: Apache-2.0
// Helpers around the products of a CPU backward: lse and delta of every row, the division of keys into tiles, and
// conversion of gradients between memory and f32.
#pragma once
#include <cmath>
#include <cstring>

#include "attention/cpu/finite.h"
#include "attention/cpu/large_logits.h"
#include "attention/cpu/pow2.h"
#include "attention/cpu/row_io.h"

namespace attune::cpu {

// True if several sequences may share pools: gradients of a key are then summed, one sequence after another.
inline bool shares_keys(const Problem& p, const Args& a) {
  return p.keys == KeySource::paged || a.given(Role::cache_index);
}

inline bool accumulates(const Problem& p) { return p.has(Option::accumulate); }

// State of every row of the problem: [batch][head][query].
struct RowState {
  float *lse, *delta;  // base 2, +inf if a row sees no key; sum dO O - dlse
  double* d_sink;      // [batch][head]
  bool* infinite;      // q or d_out, or what follows from them, is not finite
  bool* special;       // [batch][head]: some row of the head is not finite, or sees no key

  bool any_special(const Problem& p, const Unit& u) const {
    const bool* first = special + int64_t(u.b) * p.heads_q + u.head_q;
    return std::any_of(first, first + u.group, [](bool x) { return x; });
  }
};

inline RowState carve_rows(Workspace& ws, const Problem& p) {
  const size_t heads = size_t(p.batch) * size_t(p.heads_q), rows = heads * size_t(p.len_q);
  return {ws.take<float>(rows), ws.take<float>(rows), ws.take<double>(heads), ws.take<bool>(rows),
          ws.take<bool>(heads)};
}

struct Partial { float* dq; int64_t rows; };  // [split][batch][head][query][dim_qk]; not needed for one split

inline Partial carve_partial(Workspace& ws, const Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t rows = int64_t(p.batch) * p.heads_q * p.len_q;
  return {plan.splits == 1 ? nullptr : ws.take<float>(size_t(plan.splits * rows * p.dim_qk)), rows};
}

inline void read_row(const CpuKernels& m, DType t, const char* from, int n, float* to) {
  if (t == DType::f32) std::copy_n(reinterpret_cast<const float*>(from), n, to);
  else m.widen(from, n, to);
}
inline void write_row(const CpuKernels& m, DType t, const float* from, int n, char* to) {
  if (t == DType::f32) std::copy_n(from, n, reinterpret_cast<float*>(to));
  else m.narrow(from, n, to);
}
// Writes a gradient row, which is f32 if the run accumulates.
inline void write_gradient(const CpuKernels& m, const Problem& p, const float* from, int n, char* to) {
  if (!accumulates(p)) return write_row(m, p.dtype.grad, from, n, to);
  for (int d = 0; d < n; ++d) reinterpret_cast<float*>(to)[d] += from[d];
}

// Writes a gradient panel to rows at any addresses; `row` is scratch for a panel.
inline void write_panel(const CpuKernels& m, const Problem& p, const float* o, int dim, float factor, int n, float* row,
                        char* const* to) {
  float *rows[64], factors[64];
  if (accumulates(p)) {
    for (int r = 0; r < n; ++r) rows[r] = reinterpret_cast<float*>(to[r]);
    return add_panel(m, o, dim, factor, n, row, rows);
  }
  std::fill_n(factors, 64, factor);
  store_panel(m, p.dtype.grad, o, dim, factors, n, row, to);
}

// Dot product of two rows of the kernels' dtype or f32.
inline float dot_of(const CpuKernels& m, DType t, const char* a, const char* b, int n) {
  if (t == DType::f32) return dot_rows(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), n);
  if (m.dot) return m.dot(a, b, n);
  float x[256], y[256];
  m.widen(a, n, x), m.widen(b, n, y);
  return dot_rows(x, y, n);
}

// Computes lse and delta of the rows of one head, and its share of the sink gradient.
inline void prepare(const Problem& p, const Args& a, const CpuKernels& m, const RowState& to, int b, int h) {
  const Sequence seq = sequence(p, a, b);
  const int64_t first = (int64_t(b) * p.heads_q + h) * p.len_q;
  const bool has_sink = p.has(Option::sink);
  const float sink = has_sink ? *a.row<const float>(Role::sinks, 0, 0, h) : -INFINITY;
  double d_sink = 0;
  bool special = false;
  constexpr int kAtOnce = 64;
  for (int i = 0; i < seq.len_q; i += kAtOnce) {
    const void* q[kAtOnce];
    const int n = std::min(kAtOnce, seq.len_q - i);
    for (int r = 0; r < n; ++r) q[r] = row_address(a[Role::q], seq.q_batch, seq.q_first + i + r, h);
    mark_rows(m, q, n, p.dim_qk, to.infinite + first + i);
  }
  for (int i = 0; i < seq.len_q; ++i) {
    const int64_t at = seq.q_first + i;
    float delta = dot_of(m, p.dtype.out, row_address(a[Role::out], seq.q_batch, at, h),
                         row_address(a[Role::d_out], seq.q_batch, at, h), p.dim_v);
    if (a.given(Role::d_lse)) delta -= *a.row<const float>(Role::d_lse, seq.q_batch, at, h);
    const float lse = *a.row<const float>(Role::lse, seq.q_batch, at, h);
    // An element of d_out that is not finite makes delta so: times 0 it is NaN.
    to.infinite[first + i] |= !std::isfinite(delta) || !(lse < INFINITY);
    special |= to.infinite[first + i] || lse == -INFINITY;
    to.delta[first + i] = lse == -INFINITY ? 0.f : delta;
    to.lse[first + i] = lse_of_weights(lse);
    if (has_sink && lse != -INFINITY) d_sink -= std::exp(double(sink) - lse) * delta;
  }
  to.d_sink[int64_t(b) * p.heads_q + h] = d_sink;
  to.special[int64_t(b) * p.heads_q + h] = special;
}

inline void store_sinks(const Problem& p, const Args& a, const RowState& rows) {
  for (int h = 0; h < p.heads_q; ++h) {
    double sum = 0;
    for (int b = 0; b < p.batch; ++b) sum += rows.d_sink[int64_t(b) * p.heads_q + h];
    float* to = a.row<float>(Role::d_sinks, 0, 0, h);
    *to = float(sum + (accumulates(p) ? double(*to) : 0));
  }
}

// Adds the splits' dQ of one head, in order; `sum` is scratch.
inline void add_splits(const Plan& plan, const Args& a, const CpuKernels& m, const Partial& partial, float* sum, int b,
                       int h) {
  const Problem& p = plan.problem;
  const Sequence seq = sequence(p, a, b);
  for (int i = 0; i < seq.len_q; ++i) {
    std::fill_n(sum, p.dim_qk, 0.f);
    for (int split = 0; split < plan.splits; ++split) {
      const int64_t row = split * partial.rows + (int64_t(b) * p.heads_q + h) * p.len_q + i;
      add_row(partial.dq + row * p.dim_qk, p.dim_qk, sum);
    }
    write_gradient(m, p, sum, p.dim_qk, row_address(a[Role::dq], seq.q_batch, seq.q_first + i, h));
  }
}

// The key tiles of a sequence of up to `len_k` keys. Tiles do not cross blocks of a list.
struct KeyTiles {
  int64_t size, block, tiles_per_block, count;

  KeyTiles(const Plan& plan, int len_k)
      : size(plan.tile_k), block(plan.problem.mask.blocks.k),
        tiles_per_block(ceil_div(std::min<int64_t>(block, len_k), size)),
        count(block ? ceil_div(len_k, block) * tiles_per_block : ceil_div(len_k, size)) {}
  // The keys of tile n in a sequence of `len` keys.
  Rows keys(int64_t n, int len) const {
    if (!block) return {clamp(n * size, 0, len), clamp((n + 1) * size, 0, len)};
    const int64_t start = n / tiles_per_block * block, first = start + n % tiles_per_block * size;
    return {clamp(first, 0, len), clamp(std::min(first + size, start + block), 0, len)};
  }
};

// Sets every element to 0 and touches nothing between rows.
inline void clear(const Tensor& t) {
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        std::memset(row_address(t, b, s, h), 0, size_t(t.extent.dim) * size_t(size_of(t.dtype)));
}

// True if every key of a gradient belongs to a sequence, whose task stores it.
inline bool whole(const Problem& p, const Args& a, const Tensor& t) {
  if (p.keys != KeySource::linear || shares_keys(p, a) || t.extent.batch != p.batch) return false;
  for (int b = 0; b < p.batch; ++b)
    if (const Sequence seq = sequence(p, a, b); seq.k_batch != b || seq.k_first || seq.len_k != t.extent.seq)
      return false;
  return true;
}

// True if units of different sequences or heads add to the same elements of d_bias and must not run concurrently.
inline bool shares_bias(const Problem& p, const Args& a) {
  const Extents e = a[Role::d_bias].extent;
  if (p.has(Option::block_bias) && p.reproducible == Reproducible::no) return false;
  return a.given(Role::d_bias) && ((e.batch == 1 && p.batch > 1) || (e.head == 1 && p.heads_q > 1));
}

// Subtracts a block bias from the log-sum-exps instead of adding it to each logit, both in base 2.
inline void lower(float* lse, int n, float number) {
  for (int r = 0; r < n; ++r) lse[r] = lse[r] == INFINITY ? lse[r] : lse[r] - number;
}

// Marks the keys whose row of k or v is not finite; true if there are any. `rows` is scratch.
inline bool mark_keys(const Problem& p, const CpuKernels& m, const Unit& u, Rows keys, const void** rows, bool* marks) {
  const int count = keys.last - keys.first;
  gather_keys(u, Role::k, keys.first, count, rows);
  const bool any = mark_rows(m, rows, count, p.dim_qk, marks);
  gather_keys(u, Role::v, keys.first, count, rows);
  if (m.finite(rows, count, p.dim_v)) return any;
  for (int j = 0; j < count; ++j) marks[j] |= !m.finite(rows + j, 1, p.dim_v);
  return true;
}

struct UnchangedScore {  // of a pair, where no formula changes it
  float operator()(float logit) const { return logit; }
  float gradient(float d) const { return d; }
};

// One pair of a query and a key, in f32 and without panels.
struct PairRows {
  float q[256] = {}, d_out[256] = {}, k[256] = {}, v[256], sum[256];
  const CpuKernels* kernels = nullptr;

  struct Weights { float p, ds, d_logit; };  // p: after dropout; ds: by the dot product, without the scale

  void read(const Problem& p, const CpuKernels& m, const char* q_row, const char* d_out_row) {
    kernels = &m;
    m.widen(q_row, p.dim_qk, q);
    read_row(m, p.dtype.out, d_out_row, p.dim_v, d_out);
  }
  // score_of(logit) is the score of a base-2 logit; score_of.gradient(d_score) that of the logit.
  template <class Score = UnchangedScore>
  Weights pair(const Unit& u, const General& score, int i, int j, float lse, float delta, Score score_of = {}) {
    const Problem& p = *u.problem;
    kernels->widen(key_address(u, Role::k, j), p.dim_qk, k);
    kernels->widen(key_address(u, Role::v, j), p.dim_v, v);
    const float dot = dot_rows(q, k, p.dim_qk), keep = score.keep(i, j);
    const float logit = score_of(logit_of(score, dot, i, j));
    const float weight = std::exp2(exponent_of_weight(logit, lse));
    const float d_logit = score_of.gradient(weight * (keep * dot_rows(d_out, v, p.dim_v) - delta));
    return {weight * keep, d_logit * score.slope_of_logit(dot), d_logit};
  }
  // A row times a factor, in place until the next.
  const float* scaled(const float* row, float factor) {
    for (int d = 0; d < 256; ++d) sum[d] = factor * row[d];
    return sum;
  }
};

// Adds x to a row of an accumulator in panels.
inline void add_to_panels(const Panels& panels, int row, const float* x, int dim, float* acc) {
  int panel = 0;
  while (panel + 1 < panels.count() && panels.first(panel + 1) <= row) ++panel;
  panels[panel].add_row(x, dim, row - panels.first(panel), acc + int64_t(panels.first(panel)) * dim);
}

}  // namespace attune::cpu
