// SPDX-License-Identifier: Apache-2.0
// Dilated attention (LongNet, arXiv 2307.02486), "dilated mode=longnet norm=lse rates=1,2 segments=2048,4096": its
// parameters, and the rows that each head keeps. A branch (segment w, rate r) cuts the sequence into segments of w
// rows. In each segment a head keeps rows o, o + r, o + 2r, ..., as queries and as keys. docs/dilated.md has the
// definition; the reference shares only the parameters with this file.
#pragma once
#include "core/variant/variants.h"

namespace attune {

struct Dilated {
  enum class Mode : int32_t {
    longnet,    // every head runs every branch, with o = head mod r
    headgroup,  // heads are divided into contiguous groups, one per branch; group i runs branch i, with o = i mod r
  };
  enum class Norm : int32_t {
    lse,     // branches merge by their softmax denominators: one softmax over all their keys, repeats counted
    divide,  // the sum of the branches' outputs divided by the number of branches
    none,    // the sum
  };
  Mode mode = Mode::longnet;
  Norm norm = Norm::lse;
  bool detached = false;  // gradients treat the branches' merge weights as constants
  int branches = 0;
  int segment[32] = {}, rate[32] = {};

  // Whether branches are summed; otherwise every output row has one writer.
  constexpr bool sums() const { return mode == Mode::longnet && branches > 1; }
  constexpr float factor() const { return norm == Norm::divide ? 1.f / float(branches) : 1.f; }
};

// Reads the parameters, or explains what is wrong with them or with the problem. Allocates nothing on success.
Status read_dilated(const Problem&, Dilated& out);
inline Dilated dilated_of(const Problem& p) {  // requires a valid problem
  Dilated d;
  (void)read_dilated(p, d);
  return d;
}
Status valid_dilated(const Problem&);
void declare_dilated(const Problem&, const Args&, Declared&);

// Heads of group i of `groups`: equal shares, plus one in each of the first `heads % groups` groups.
constexpr Rows group_heads(int heads, int groups, int i) {
  const int each = heads / groups, more = heads % groups;
  const int first = i * each + (i < more ? i : more);
  return {first, first + each + (i < more ? 1 : 0)};
}

// The rows in [first, last) at a multiple of `rate` after `origin`.
struct Picked { int64_t first, count; };
constexpr Picked pick(int64_t origin, int64_t rate, int64_t first, int64_t last) {
  const int64_t from = first <= origin ? origin : origin + ceil_div(first - origin, rate) * rate;
  return {from, from < last ? ceil_div(last - from, rate) : 0};
}

// Heads with the same offset in a branch, as a strided view of the heads of q and k. `heads_q` query heads, `step_q`
// apart starting at `head_q`, share `heads_kv` KV heads evenly.
struct HeadSet {
  int offset;  // o of the branch
  int head_q, head_kv, heads_q, heads_kv, step_q, step_kv;
};
// The number of sets in branch n, and its i-th set. A set of a longnet branch is one offset. A head group has three
// sets: the heads before its first complete GQA group, the complete groups, and the rest. Sets may be empty.
int head_sets(const Dilated&, const Problem&, int n);
HeadSet head_set(const Dilated&, const Problem&, int n, int i);

// The (query, key) pairs that are multiplied, over the heads of one sequence of `length` rows.
double dilated_pairs(const Problem&, int64_t length);

}  // namespace attune
