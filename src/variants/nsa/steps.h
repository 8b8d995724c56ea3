// Native sparse attention as plain problems: which steps a call takes, and what each of them is asked. Nothing runs
// here; nsa.cpp strings them together.
#pragma once
#include "core/variant/nsa.h"

namespace attune {

enum class NsaStep : int {
  compress_k, compress_v,  // raw streams to compressed ones; in a backward too, as they are not kept
  compressed,              // attention to compressed tokens
  select,                  // which blocks
  selected,                // attention to their raw tokens
  window,
  gate,
  reads,                   // the counter
  gate_backward,
  selected_backward,       // first, and overwrites dq: it alone need not know how to add
  window_backward, compressed_backward,
  compress_k_backward, compress_v_backward,
  count
};

struct NsaShape {
  const Problem p;
  const Nsa nsa;
  const bool backward, ragged;
  bool sums_apart;  // gradients are summed in f32, and are not f32

  explicit NsaShape(const Problem&);

  bool has(Branch b) const { return nsa.only == Branch::all || nsa.only == b; }
  bool takes(NsaStep) const;
  int index(NsaStep) const;       // among the parts of a plan
  Problem problem(NsaStep) const;  // of a step that is taken

  // Bounds of rows, of all sequences.
  int64_t queries() const { return int64_t(p.batch) * p.len_q; }
  int64_t compressed_bound() const;  // of one sequence, at least 1
};

}  // namespace attune
