// A dilated branch as calls of plain attention on strided views, without gathering: the rows, heads, segments and
// sequences that each call covers. Heads of one offset are a stride on the head axis, rows a stride on the sequence
// axis. The remaining loops (sequences, segments, offsets) are folded: the longest into the batch axis of the view, the
// next into its head axis if it exceeds the number of heads. The result is few calls, each large enough for a GPU.
#pragma once
#include "core/variant/dilated.h"

namespace attune {

// How a view axis moves through a tensor.
struct ViewAxis {
  int count = 1;
  int64_t batches = 0, rows = 0;
  int heads = 0;
};

// The part of a view that is common to q, out, lse and their gradients, or to k, v and theirs.
struct ViewOf {
  int64_t batch = 0, row = 0;  // its origin
  int head = 0;
  int rows = 0, rate = 1;
  ViewAxis along_batch{}, along_head{};

  // The view of a tensor whose row 0 is row `base` of the sequence.
  Tensor of(const Tensor&, int64_t base) const;
};

struct DilatedCall {
  int branch = 0;
  ViewOf q{}, k{};
};

// One sequence and one KV head of a call, with all its query heads: a backward writes the gradients of a KV head once.
DilatedCall single(const DilatedCall&, int batch, int head_kv);

// Branches in execution order: a branch of rate 1, which has every row of every head, comes first if there is one.
int branch_at(const Dilated&, int n);
bool first_has_all(const Dilated&);

// The calls for the queries in rows [first, last) of a sequence of `length` rows. In a causal call keys end where
// queries end, so the last of both are aligned. Otherwise the keys are the whole segment.
template <class F>
Status each_call(const Dilated&, const Problem&, int64_t length, int64_t first, int64_t last, F f);

namespace detail {

// Equal segments: `count` whole ones starting at `segment`, or one of which the queries are [q_first, q_last).
struct Span { int64_t segment, q_first, q_last, k_last; int count; };
Span next_span(const Dilated&, const Problem&, int branch, int64_t length, int64_t first, int64_t last);

// Head sets whose views differ only in their origin, by a constant step.
struct Run {
  HeadSet set{};
  Picked q{}, k{};
  int count = 0;
  int64_t rows = 0;
  int heads_q = 0, heads_kv = 0;

  bool take(const HeadSet&, const Picked& q, const Picked& k);  // false: it does not belong to this run
};
Run run_from(const Dilated&, const Problem&, int branch, const Span&, int set, int sets, int& next);

// The calls of a run: the n-th of `loops`.
struct Folded {
  DilatedCall first{};
  ViewAxis loop_q[2]{}, loop_k[2]{};

  int calls() const { return loop_q[0].count * loop_q[1].count; }
  DilatedCall call(int n) const;
};
Folded fold(const Dilated&, const Problem&, int branch, const Span&, const Run&);

}  // namespace detail

template <class F>
Status each_call(const Dilated& d, const Problem& p, int64_t length, int64_t first, int64_t last, F f) {
  for (int n = 0; n < d.branches; ++n) {
    const int branch = branch_at(d, n), sets = head_sets(d, p, branch);
    for (int64_t at = first; at < last;) {
      const detail::Span span = detail::next_span(d, p, branch, length, at, last);
      at = span.count > 1 ? span.segment + int64_t(span.count) * d.segment[branch] : span.q_last;
      for (int set = 0; set < sets;) {
        const detail::Run run = detail::run_from(d, p, branch, span, set, sets, set);
        if (!run.count) continue;
        const detail::Folded folded = detail::fold(d, p, branch, span, run);
        for (int i = 0; i < folded.calls(); ++i)
          if (Status s = f(folded.call(i)); !s.ok()) return s;
      }
    }
  }
  return Status::good();
}

}  // namespace attune
