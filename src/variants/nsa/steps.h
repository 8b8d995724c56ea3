// SPDX-License-Identifier: Apache-2.0
// Native Sparse Attention as plain problems: the steps of a call, and the problem of each. Nothing runs here; nsa.cpp
// connects them.
#pragma once
#include "core/variant/nsa.h"

namespace attune {

enum class NsaStep : int {  // in the order of plans; nsa.cpp has the order of a run
  compress_k, compress_v,  // raw streams to compressed ones; also in a backward, because they are not kept
  compressed,              // attention to compressed tokens
  select,                  // selection of blocks
  selected,                // attention to their raw tokens
  window,
  gate,
  reads,                   // the counter
  gate_backward,
  selected_backward,       // first of the branches: overwrites dq, so it need not support accumulation
  window_backward, compressed_backward,
  compress_k_backward, compress_v_backward,
  count
};

struct NsaShape {
  const Problem p;
  const Nsa nsa;
  const bool backward, ragged;
  bool sums_apart;  // gradients are summed in f32 and are not f32

  explicit NsaShape(const Problem&);

  bool has(Branch b) const { return nsa.only == Branch::all || nsa.only == b; }
  bool takes(NsaStep) const;
  int index(NsaStep) const;        // among the parts of a plan
  Problem problem(NsaStep) const;  // for a step that is taken

  // Bounds on rows, over all sequences.
  int64_t queries() const { return int64_t(p.batch) * p.len_q; }
  int64_t compressed_bound() const;  // for one sequence, at least 1
};

}  // namespace attune
