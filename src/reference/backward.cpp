// SPDX-License-Identifier: Apache-2.0
// The gradients of the definition, one query at a time, in double. Like every backward it takes out, lse and d_out as
// given and recomputes the weights from lse: P = e^(logit - lse). Each gradient is computed only if it is given.
//
// What a run writes (core/args.h): the rows of dq that belong to queries of its sequences; rows beyond used_q are left
// untouched. The gradients that queries share (dk, dv, d_bias, d_sinks) are written completely and need not be cleared
// first: 0 where no query sees the key (padding, beyond used_k, pages in no table), a sum where sequences share a cache
// row or page. With accumulate, all of it is added to the existing values.
#include <cmath>
#include <vector>

#include "reference/definition.h"
#include "reference/naive.h"

namespace attune::reference_detail {
namespace {

double size_of_row(const Tensor& x, Place at, int64_t head, int dim) {
  return std::sqrt(dot(x, at, head, x, at, head, dim));
}

// A gradient under summation: the elements of a tensor, in double.
struct Sum {
  Tensor to{}, memory{};
  std::vector<double> values{};

  Sum(const Tensor& gradient, bool running) : to(gradient), memory(gradient) {
    if (!to.data) return;
    const Extents& e = to.extent;
    memory.dtype = DType::f64;
    memory.stride = {int64_t(e.seq) * e.head * e.dim, int64_t(e.head) * e.dim, e.dim};
    values.assign(size_t(e.batch * memory.stride.batch), 0.0);
    memory.data = values.data();
    if (running) each([&](int b, int s, int h, int d) { at(b, s, h, d) = load(to, b, s, h, d); });
  }
  explicit operator bool() const { return to.data != nullptr; }
  double& at(int64_t b, int64_t s, int64_t h, int64_t d) {
    return view<double>(memory).row(b, s, h)[d];
  }
  double* row(Place place, int64_t h) { return &at(place.batch, place.seq, h, 0); }
  // An input with extent 1 on an axis was broadcast, so its gradient is a sum over that axis.
  double& broadcast_at(int64_t b, int64_t s, int64_t h, int64_t d) {
    const Extents& e = to.extent;
    return at(e.batch == 1 ? 0 : b, e.seq == 1 ? 0 : s, e.head == 1 ? 0 : h, e.dim == 1 ? 0 : d);
  }
  template <class F>
  void each(F f) const {
    for (int b = 0; b < to.extent.batch; ++b)
      for (int s = 0; s < to.extent.seq; ++s)
        for (int h = 0; h < to.extent.head; ++h)
          for (int d = 0; d < to.extent.dim; ++d) f(b, s, h, d);
  }
  void write() {
    if (to.data) each([&](int b, int s, int h, int d) { save(to, b, s, h, d, at(b, s, h, d)); });
  }
};

struct Gradients {
  Sum dk, dv, d_bias, d_sinks;
  std::vector<Sum> d_array;  // of the arrays of a formula
  std::vector<double> dq;    // for one query
  // For naive_sum: the size of the query's row of d_out over the root of its length, and of the rows of v of a sequence
  // and head. A product of two is the root of the sum of a dot product's squared terms, up to a factor of about one.
  double size_of_d_out = 0, root_of_dim = 1;
  std::vector<double> size_of_v;

  Gradients(const Problem& p, const Args& a)
      : Gradients(a, p.has(Option::accumulate)) {
    dq.resize(size_t(p.dim_qk));
    for (int n = 0; n < formula_of(p).arrays; ++n)
      d_array.emplace_back(a[d_variant_tensor(n)], p.has(Option::accumulate));
  }
  Gradients(const Args& a, bool running)
      : dk(a[Role::dk], running), dv(a[Role::dv], running), d_bias(a[Role::d_bias], running),
        d_sinks(a[Role::d_sinks], running) {}

  void add_pair(const Definition& one, int64_t h, int64_t i, int64_t j, double lse, double D) {
    const Args& a = one.a;
    const Place q = one.query(i), k = one.key(j);
    const int64_t hk = one.kv_head(h);
    const double product = one.product(h, i, j), keep = one.keep(h, i, j);
    const double logit = one.logit(product, h, i, j);
    const double P = weight_given(lse, one.scored(logit, h, i, j));
    const double dP = keep * naive_sum(dot(a[Role::d_out], q, h, a[Role::v], k, hk, one.p.dim_v),
                                       [&] { return size_of_d_out * size_of_v[size_t(j)]; });
    const double d_logit = score_gradient(one, logit, P * (dP - D), h, i, j);
    const double d_dot = naive_operand(d_logit * one.logit_slope(product)) * one.scale;
    if (dv) add_row(dv.row(k, hk), naive_operand(keep * P), a[Role::d_out], q, h, one.p.dim_v);
    if (dk) add_row(dk.row(k, hk), d_dot, a[Role::q], q, h, one.p.dim_qk);
    if (d_bias && one.p.has(Option::block_bias)) d_bias.at(0, 0, 0, one.entry(h, i, j)) += naive_score(d_logit);
    else if (d_bias) d_bias.broadcast_at(one.b, i, h, j) += naive_score(d_logit);
    add_row(dq.data(), d_dot, a[Role::k], k, hk, one.p.dim_qk);
  }

  // The gradient of a logit from that of its score, and the gradients of the arrays that the score reads.
  double score_gradient(const Definition& one, double logit, double d_score, int64_t h, int64_t i, int64_t j) {
    const Formula& f = one.formula;
    if (f.score < 0 || d_score == 0) return d_score;
    for (int n = 0; n <= f.score; ++n) {
      if (f.node[n].op != Op::element || !d_array[f.node[n].array]) continue;
      FormulaPair pair{logit, one.b, h, one.kv_head(h), one.q_position(i), one.k_position(j), one.len_q, one.len_k};
      const FormulaWalk walk{f, one.a, pair, n};
      const double slope = walk.walk(f.score).slope;
      const ElementPlace at = walk.place(n);
      if (slope != 0) d_array[f.node[n].array].at(at.b, at.s, at.h, at.d) += naive_score(d_score) * slope;
    }
    const double slope = one.value_at(f.score, logit, h, i, j).slope;
    return slope == 0 ? 0 : d_score * slope;
  }

  void take_head(const Definition& one, int64_t h) {
    root_of_dim = std::sqrt(double(one.p.dim_v));
    size_of_v.assign(naive_rounding.sums != 0 ? size_t(one.len_k) : 0, 0.0);
    for (size_t j = 0; j < size_of_v.size(); ++j)
      size_of_v[j] = size_of_row(one.a[Role::v], one.key(int64_t(j)), one.kv_head(h), one.p.dim_v);
  }

  void add_query(const Definition& one, int64_t h, int64_t i) {
    const Args& a = one.a;
    const Place at = one.query(i);
    const double lse = load(a[Role::lse], at.batch, at.seq, h, 0);
    dq.assign(dq.size(), 0.0);
    if (one.p.has(Option::accumulate) && a.given(Role::dq)) add_row(dq.data(), 1, a[Role::dq], at, h, one.p.dim_qk);
    if (lse != -INFINITY) {  // a row that sees no key has no gradient
      double D = a.given(Role::d_lse) ? -load(a[Role::d_lse], at.batch, at.seq, h, 0) : 0;
      if (naive_rounding.sums != 0) size_of_d_out = size_of_row(a[Role::d_out], at, h, one.p.dim_v) / root_of_dim;
      D += naive_sum(dot(a[Role::d_out], at, h, a[Role::out], at, h, one.p.dim_v),
                     [&] { return size_of_d_out * size_of_row(a[Role::out], at, h, one.p.dim_v); });
      if (d_sinks) d_sinks.at(0, 0, h, 0) -= std::exp(load(a[Role::sinks], 0, 0, h, 0) - lse) * D;
      for (int64_t j = 0; j < one.len_k; ++j)
        if (one.sees(h, i, j)) add_pair(one, h, i, j, lse, D);
    }
    if (!a.given(Role::dq)) return;
    for (int d = 0; d < one.p.dim_qk; ++d) save(a[Role::dq], at.batch, at.seq, h, d, dq[size_t(d)]);
  }
};

}  // namespace

Status run_backward(const Problem& p, const Args& a) {
  Gradients gradients(p, a);
  for (int64_t b = 0; b < p.batch; ++b) {
    const Definition one(p, a, b);
    for (int64_t h = 0; h < p.heads_q; ++h) {
      gradients.take_head(one, h);
      for (int64_t i = 0; i < one.len_q; ++i) gradients.add_query(one, h, i);
    }
  }
  for (Sum* sum : {&gradients.dk, &gradients.dv, &gradients.d_bias, &gradients.d_sinks}) sum->write();
  for (Sum& sum : gradients.d_array) sum.write();
  return Status::good();
}

}  // namespace attune::reference_detail
