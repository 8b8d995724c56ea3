// SPDX-License-Identifier: Apache-2.0
// What the tasks of one call share. A task is a row block of one sequence and key head (panels.cpp), or one query of it
// (decode.cpp), over all keys or one split of them.
#pragma once
#include <algorithm>
#include <cmath>

#include "core/softmax.h"
#include "core/workspace.h"
#include "plugins/ggml/attention.h"
#include "plugins/ggml/mask.h"

namespace attune::ggml {

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Rows of an unfinished result: [split][row], unnormalised.
struct Partial {
  float *o, *ref, *sum;
};

struct Call {
  const Attention& a;
  const CpuKernels &m, &k, &v, &half;  // the loops on panels; those that read k and v where they lie; those for f16
  const MaskMap& map;
  const Partial& partial;
  const float* slopes;  // of ALiBi in base 2, one per query head
  const int splits;

  // q carries it, so that scores are base-2 logits; with a softcap they are arguments of the tanh.
  float scale() const { return a.softcap != 0.f ? a.scale / a.softcap : a.scale * kLog2e; }
  int64_t rows() const { return int64_t(a.batch) * a.len_q * a.heads_q; }
  int64_t row(int b, int h, int i) const { return (int64_t(b) * a.len_q + i) * a.heads_q + h; }
  // Where a row of the result goes, and what it is multiplied by.
  float* out(int split, int64_t row) const {
    if (splits > 1) return partial.o + (split * rows() + row) * a.v.dim;
    return reinterpret_cast<float*>(a.out.data) + row * a.v.dim;
  }
  float finish(int split, int64_t row, int h, float ref, float sum) const {
    if (splits == 1) return factor(h, ref, sum);
    partial.ref[split * rows() + row] = ref, partial.sum[split * rows() + row] = sum;
    return 1.f;
  }
  // 1 / (sum of weights), relative to 2^ref. A sink is one more weight.
  float factor(int h, float ref, float sum) const {
    if (!a.sinks) return sum == 0.f ? 0.f : 1.f / sum;
    if (sum == 0.f) return 0.f;
    const float sink = a.sinks[h] * kLog2e, top = std::max(ref, sink), share = std::exp2(ref - top);
    return share / (sum * share + std::exp2(sink - top));
  }
  void cap(float* x, int n) const;  // base-2 logits of n arguments; n is a multiple of 16
  void merge(int64_t row) const;    // joins the splits of a row
};

// Scratch of one worker.
struct Scratch {
  std::byte *q, *k, *v, *p;
  float *o, *s, *plain, *ref, *sum, *row, *numbers, *widened;
  const void** rows;
};

inline constexpr int kTaskRows = 1024;  // how often a packed tile is reused
inline constexpr int kMaxRows = 64;     // of a panel, for all instruction sets
inline constexpr int kTogether = 4;     // rows of row_scores and row_accumulate

// Rows of a head lie apart, which the hardware does not foresee.
inline constexpr int kKeysAhead = 8;
inline void fetch(const char* row, int bytes) {
  for (int at = 0; at < bytes + 64; at += 64) __builtin_prefetch(row + at);
}

// Rows of k or v by address. Quantized rows are converted to `widened`, which has room for n of them.
inline void gather(const Rows& from, int b, int h, int first, int n, float* widened, const void** to) {
  for (int j = 0; j < n; ++j) {
    const char* row = from.at(b, h, first + j);
    if (is_quantized(from.stored) && j + kKeysAhead < n) fetch(row + kKeysAhead * from.row, from.dim);
    if (is_quantized(from.stored)) widen_quantized(from.stored, row, from.dim, widened + int64_t(j) * from.dim);
    to[j] = is_quantized(from.stored) ? static_cast<const void*>(widened + int64_t(j) * from.dim) : row;
  }
}

// Moves the integer reference of a row if a logit exceeds it by more than 8. Returns the factor for what exists.
inline float raise(float& ref, float top) {
  if (!(top > ref + 8.f)) return 1.f;
  const float from = ref;
  ref = std::ceil(top);
  return from == -INFINITY ? 0.f : std::exp2(from - ref);
}

// Rows [first, first + count) of the key head's group in sequence b; row r is query r / group, head r % group.
void run_panels(const Call&, const Scratch&, int b, int head_kv, int first, int count, int split);
// All rows of one query.
void run_decode(const Call&, const Scratch&, int b, int head_kv, int query, int split);

}  // namespace attune::ggml
