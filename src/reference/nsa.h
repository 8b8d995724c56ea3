// SPDX-License-Identifier: Apache-2.0
// Native Sparse Attention as its definition reads, in double: whole streams in memory, explicit sets of keys, an
// overlap matrix. It shares only the parameters with the kernels, and no index arithmetic.
#pragma once
#include <functional>
#include <vector>

#include "core/variant/nsa.h"
#include "reference/definition.h"

namespace attune::reference_detail {

// [token][head][dim] of one sequence.
struct Grid {
  int64_t tokens = 0, heads = 0, dim = 0;
  std::vector<double> values{};

  Grid() = default;
  Grid(int64_t t, int64_t h, int64_t d) : tokens(t), heads(h), dim(d), values(size_t(t * h * d), 0.0) {}
  double* row(int64_t t, int64_t h) { return values.data() + (t * heads + h) * dim; }
  const double* row(int64_t t, int64_t h) const { return values.data() + (t * heads + h) * dim; }
};

// The weights of a phi, and their gradients if requested.
struct Weights {
  Tensor tensor[5]{}, gradient[5]{};
  double at(int n, int64_t s, int64_t h, int64_t d) const;  // a head axis of extent 1 is broadcast
  void add(int n, int64_t s, int64_t h, int64_t d, double x) const;
};

using Keys = std::vector<int64_t>;
// The keys that query i of group g sees, in any order, each once.
using Seen = std::function<Keys(int64_t i, int64_t g)>;

Grid compress(const Nsa&, const Weights&, const Grid& raw);
void compress_backward(const Nsa&, const Weights&, const Grid& raw, const Grid& d_out, Grid& d_raw);

void attend(const Grid& q, const Grid& k, const Grid& v, double scale, const Seen&, Grid& out, Grid& lse);
// From given out and lse, like every backward. Adds to dq, dk and dv. `d_lse` may be empty.
void attend_backward(const Grid& q, const Grid& k, const Grid& v, double scale, const Seen&, const Grid& out,
                     const Grid& lse, const Grid& d_out, const Grid& d_lse, Grid& dq, Grid& dk, Grid& dv);

// The blocks of a query at position t of group g: ascending, at most n.
Keys select(const Nsa&, const Grid& q, const Grid& compressed, const Grid& lse, double scale, int64_t i, int64_t t,
            int64_t g);

// Three gates from three logits, and the gradient of the logits from that of the gates.
void gates(GateOf, const double logit[3], double gate[3]);
void gates_backward(GateOf, const double gate[3], const double d_gate[3], double d_logit[3]);

Status nsa_forward(const Problem&, const Args&);  // any of its words
Status nsa_backward(const Problem&, const Args&);

}  // namespace attune::reference_detail
