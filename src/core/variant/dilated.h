// Dilated attention (LongNet, arXiv 2307.02486), "dilated mode=longnet norm=lse rates=1,2 segments=2048,4096": what the
// word is asked for, and which rows a head has where. A branch (segment w, rate r) cuts the sequence into segments of w
// rows, and of each a head keeps the rows o, o + r, o + 2r, ...: as queries and as keys alike. The definition is
// docs/dilated.md; the reference shares nothing of this but the parameters.
#pragma once
#include "core/variant/variants.h"

namespace attune {

struct Dilated {
  enum class Mode : int32_t {
    longnet,    // every head runs every branch, with o = head mod r
    headgroup,  // heads are dealt out to the branches in contiguous groups; group i runs branch i, with o = i mod r
  };
  enum class Norm : int32_t {
    lse,     // branches are joined by their softmax denominators: one softmax over all their keys, repeats counted
    divide,  // the sum of the branches' outputs, divided by how many branches there are
    none,    // the sum
  };
  Mode mode = Mode::longnet;
  Norm norm = Norm::lse;
  bool detached = false;  // gradients take the shares of the branches as constants
  int branches = 0;
  int segment[32] = {}, rate[32] = {};

  // Whether branches add up: else every output row has one writer.
  constexpr bool sums() const { return mode == Mode::longnet && branches > 1; }
  constexpr float factor() const { return norm == Norm::divide ? 1.f / float(branches) : 1.f; }
};

// The parameters, or a sentence on what is wrong with them or with the problem. Allocates nothing where they are right.
Status read_dilated(const Problem&, Dilated& out);
inline Dilated dilated_of(const Problem& p) {  // of a valid problem
  Dilated d;
  (void)read_dilated(p, d);
  return d;
}
Status valid_dilated(const Problem&);
void declare_dilated(const Problem&, const Args&, Declared&);

// Heads of group i of `groups`: as many each, and one more in the first `heads % groups`.
constexpr Rows group_heads(int heads, int groups, int i) {
  const int each = heads / groups, more = heads % groups;
  const int first = i * each + (i < more ? i : more);
  return {first, first + each + (i < more ? 1 : 0)};
}

// The rows from `first` on that are a multiple of `rate` behind `origin`, in [first, last).
struct Picked { int64_t first, count; };
constexpr Picked pick(int64_t origin, int64_t rate, int64_t first, int64_t last) {
  const int64_t from = first <= origin ? origin : origin + ceil_div(first - origin, rate) * rate;
  return {from, from < last ? ceil_div(last - from, rate) : 0};
}

// Heads that have the same remainder in a branch, as steps through the heads of q and of k: a view. `heads_q` query
// heads, `step_q` apart from `head_q` on, share `heads_kv` heads of keys evenly.
struct HeadSet {
  int offset;  // o of the branch
  int head_q, head_kv, heads_q, heads_kv, step_q, step_kv;
};
// How many sets branch n has, and the i-th of them. A set of a longnet branch is one remainder; of a head group, the
// heads before its first whole group of query heads, those of whole groups, and those after. Sets may be empty.
int head_sets(const Dilated&, const Problem&, int n);
HeadSet head_set(const Dilated&, const Problem&, int n, int i);

// Pairs of a query and a key that are multiplied, over the heads of one sequence of `length` rows.
double dilated_pairs(const Problem&, int64_t length);

}  // namespace attune
