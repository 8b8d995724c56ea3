// SPDX-License-Identifier: Apache-2.0
// KV splits of a forward, and how their rows end.
#pragma once
#include "attention/cpu/unit.h"

namespace attune::cpu {

// Results of one KV split, before the merge.
struct SplitRows {
  float *out, *lse;  // [split][batch][head][query], out with dim_v values each
  int64_t rows;      // per split
};

inline SplitRows carve_splits(Workspace& ws, const Plan& plan) {
  const Problem& p = plan.problem;
  if (plan.splits == 1) return {};
  const int64_t rows = int64_t(p.batch) * p.heads_q * p.len_q;
  return {ws.take<float>(size_t(plan.splits * rows * p.dim_v)), ws.take<float>(size_t(plan.splits * rows)), rows};
}

// Stores a row of a forward's output, f32 or the kernels' dtype. `before`: factor of the previous output.
inline void store_row(const CpuKernels& m, const Problem& p, const float* from, float before, char* out) {
  if (p.dtype.out != DType::f32) return m.narrow(from, p.dim_v, out);
  float* to = reinterpret_cast<float*>(out);
  if (!p.has(Option::accumulate)) std::copy_n(from, p.dim_v, to);
  else for (int d = 0; d < p.dim_v; ++d) to[d] = from[d] + (before == 0.f ? 0.f : to[d] * before);
}

// Merges the splits of the rows of a head, in order, then the previous output and the sink; `row` is scratch.
inline void merge_splits(const Plan& plan, const Args& a, const CpuKernels& m, const SplitRows& part, float* row, int b,
                         int h) {
  const Problem& p = plan.problem;
  const Sequence seq = sequence(p, a, b);
  for (int i = 0; i < seq.len_q; ++i) {
    const int64_t at = (int64_t(b) * p.heads_q + h) * p.len_q + i;
    float lse = -INFINITY;
    std::fill_n(row, p.dim_v, 0.f);
    for (int n = 0; n < plan.splits; ++n) {
      const Share share = merge(lse, part.lse[n * part.rows + at]);
      const float* from = part.out + (n * part.rows + at) * p.dim_v;
      for (int d = 0; d < p.dim_v; ++d) row[d] = row[d] * share.a + (share.b == 0.f ? 0.f : from[d] * share.b);
      lse = share.lse;
    }
    RowEnd end(lse);
    float* lse_at = a.row<float>(Role::lse, seq.q_batch, seq.q_first + i, h);
    if (p.has(Option::accumulate)) end.merge_running(*lse_at);
    if (p.has(Option::sink)) end.merge_sink(*a.row<const float>(Role::sinks, 0, 0, h));
    for (int d = 0; d < p.dim_v; ++d) row[d] *= end.now;
    store_row(m, p, row, end.before, row_address(a[Role::out], seq.q_batch, seq.q_first + i, h));
    if (lse_at) *lse_at = end.lse;
  }
}

}  // namespace attune::cpu
