// SPDX-License-Identifier: Apache-2.0
// What sm90_backward decides in a plan (Plan::choice), and the properties of a problem on which it depends. Host code
// without CUDA.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/score.h"
#include "plan/backend.h"

namespace attune::sm90 {

// fused: one kernel, which owns keys. two_kernel: a kernel that owns queries, and one that owns keys. general: such
// kernels for every problem.
enum class BackwardPath : unsigned char { fused, two_kernel, general };

struct BackwardChoice {
  BackwardPath path = BackwardPath::fused;
  bool deterministic = false;  // dQ is added in a fixed order
  bool options = false;        // some option changes scores
  bool listed = false;         // block lists
  bool tabled = false;         // tiles come from a table in memory
  // The rest is for the fused kernel, except for head dims.
  bool transposed = false;     // 80 queries per step, and dQ transposed
  bool persistent = false;     // CTAs stay resident and take key tiles from a counter
  bool prepares = false;       // their idle warps preprocess later heads
  int dim_qk = 0, dim_v = 0;   // the largest head dims that the kernel serves
  int head_splits = 1;         // of a GQA group
  int query_splits = 1;        // of each divided key tile
  int64_t divided = 0, first_divided = 0;  // divided key tiles, and those before them
  double rows = 0;             // mean number of rows that see a key, summed over the GQA group
};

// Plan::kernel: equal for equal kernels, and different otherwise.
inline int number_of(const BackwardChoice& c) {
  if (c.path == BackwardPath::two_kernel) return c.dim_qk + c.dim_v;
  int number = c.dim_qk, weight = 1 << 10;
  if (c.path == BackwardPath::general) return number + 256 * weight;
  for (const bool has : {c.deterministic, c.options, c.listed, c.transposed, c.head_splits > 1, c.persistent,
                         c.prepares, c.tabled || c.listed})
    number += has * weight, weight *= 2;
  return number;
}

inline bool is_large_head(const Problem& p) { return p.dim_qk > 128 || p.dim_v > 128; }
// True if the problem needs more than kernels without tables serve, whatever the lengths.
inline bool needs_table(const Problem& p) {
  return needs_general(p) || p.mask.blocks.q || p.dtype.grad == DType::f32;
}
// True if lengths are in tensors, or there are rows outside all sequences.
inline bool has_lengths(const Problem& p, const Args& a) {
  return p.keys == KeySource::ragged || a[Role::q].extent.seq > p.len_q || a[Role::k].extent.seq > p.len_k ||
         has_sequence_tensors(a);
}

// The kernels that serve a problem if lengths are not in tensors. With lengths in tensors, the general kernels replace
// the two kernels.
inline BackwardPath path_of(const Problem& p) {
  const Blocks& size = p.mask.blocks;
  const bool deterministic = p.reproducible != Reproducible::no;
  const bool fused_list = size.k == 128 && (size.q == 128 || (size.q == 64 && std::max(p.dim_qk, p.dim_v) > 64));
  if (is_large_head(p)) return needs_table(p) ? BackwardPath::general : BackwardPath::two_kernel;
  if (size.q && (!fused_list || needs_general(p) || deterministic)) return BackwardPath::general;
  return deterministic && p.has(Option::bias) ? BackwardPath::general : BackwardPath::fused;
}

std::string describe_backward(const Plan&);  // the choice in one line

}  // namespace attune::sm90
