// SPDX-License-Identifier: Apache-2.0
// The branches of Native Sparse Attention for one head of one sequence, by the definition (docs/nsa.md) and in double:
// the keys that a query sees in each, and its gates. A mistake is a different value of a non-const member.
#pragma once
#include "core/variant/nsa.h"
#include "core/score.h"
#include "verify/rows.h"

namespace attune {

struct NsaBranches {
  const Problem& p;
  const Args& a;
  const Nsa nsa;
  const int b, h;
  int kv_head;
  double scale;
  int window;              // tokens
  bool swapped = false;    // q, k and v with heads and sequence swapped
  bool top_left = false;   // the first query is aligned with the first key
  bool tail = false;       // a selected block is read to its end, past the query
  int only_key = 0;        // 1: only the first key of every branch; -1: the last

  NsaBranches(const Problem&, const Args&, int batch, int head);

  bool wants(Branch branch) const { return nsa.only == Branch::all || nsa.only == branch; }
  bool whole() const { return nsa.only == Branch::all; }
  int64_t tokens() const { return a.integer(Role::used_k, b, a[Role::q].extent.seq); }
  int64_t position(int i) const { return top_left ? i : tokens() - a[Role::q].extent.seq + i; }
  int64_t blocks(int i, int n) const { return int64_t(load(a[variant_tensor(kNsaBlocks)], b, i, kv_head, n)); }

  Row query(int i) const;
  Row key(int branch, int64_t j, bool value) const;
  std::vector<int64_t> keys(int branch, int i) const;  // visible to query i
  void gates(int i, double gate[3]) const;

 private:
  Row read(const Tensor&, int64_t seq, int64_t head) const;
};

}  // namespace attune
