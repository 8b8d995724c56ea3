// SPDX-License-Identifier: Apache-2.0
// The definition of dilated attention, in double. For every query of a head, the keys of each branch are found one by
// one, by testing whether two positions share a segment and the head's offset. It uses no views, no head classes and no
// merge. A key in two branches counts twice, once in each.
#include <cmath>
#include <vector>

#include "core/variant/dilated.h"
#include "reference/definition.h"
#include "reference/naive.h"

namespace attune::reference_detail {

Status forward_dilated(const Problem&, const Args&);
Status backward_dilated(const Problem&, const Args&);

namespace {

struct Term { int64_t key; double product; };

// One branch as seen by one query of one head.
struct Part {
  std::vector<Term> terms{};
  double lse = -INFINITY;
  std::vector<double> out{};
};

struct Reading {
  const Problem& p;
  const Args& a;
  Dilated d;
  int64_t length;
  double scale;
  bool contiguous;  // offsets of heads in mode longnet

  Reading(const Problem& problem, const Args& args) : p(problem), a(args), d(dilated_of(problem)) {
    length = a[Role::q].extent.seq;
    contiguous = value(p.variant, "offsets") == "contiguous";
    scale = a.scale != 0.f ? double(a.scale) : 1 / std::sqrt(double(p.dim_qk));
  }

  int64_t kv_head(int64_t h) const { return h * p.heads_kv / p.heads_q; }
  // The branch of a head, in mode headgroup: the extra heads go to the first branches.
  int64_t branch_of_head(int64_t h) const {
    int64_t first = 0;
    for (int64_t n = 0; n < d.branches; ++n) {
      first += p.heads_q / d.branches + (n < p.heads_q % d.branches);
      if (h < first) return n;
    }
    return -1;
  }
  bool has(int64_t h, int n, int64_t row) const {
    const bool dealt = d.mode == Dilated::Mode::headgroup;
    if (dealt && branch_of_head(h) != n) return false;
    const int64_t rate = d.rate[n], shared = (p.heads_q + rate - 1) / rate;  // heads with one contiguous offset
    const int64_t remainder = dealt ? n % rate : contiguous ? h / shared : h % rate;
    return row % d.segment[n] % rate == remainder;
  }
  bool sees(int64_t h, int n, int64_t i, int64_t j) const {
    if (p.mask.kind == MaskKind::causal && j > i) return false;
    return i / d.segment[n] == j / d.segment[n] && has(h, n, i) && has(h, n, j);
  }
  double product(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return scale * dot(a[Role::q], {b, i}, h, a[Role::k], {b, j}, kv_head(h), p.dim_qk);
  }

  Part part(int64_t b, int64_t h, int n, int64_t i) const {
    Part made;
    for (int64_t j = 0; j < length; ++j)
      if (sees(h, n, i, j)) made.terms.push_back({j, product(b, h, i, j)});
    double top = -INFINITY, sum = 0;
    for (const Term& t : made.terms) top = std::fmax(top, t.product);
    for (const Term& t : made.terms) sum += std::exp(t.product - top);
    made.out.assign(size_t(p.dim_v), 0.0);
    if (made.terms.empty()) return made;
    made.lse = top + std::log(sum);
    for (const Term& t : made.terms)
      add_row(made.out.data(), std::exp(t.product - made.lse), a[Role::v], {b, t.key}, kv_head(h), p.dim_v);
    return made;
  }
  std::vector<Part> parts(int64_t b, int64_t h, int64_t i) const {
    std::vector<Part> all;
    for (int n = 0; n < d.branches; ++n) all.push_back(part(b, h, n, i));
    return all;
  }
};

double lse_of(const std::vector<Part>& parts) {
  double top = -INFINITY, sum = 0;
  for (const Part& part : parts) top = std::fmax(top, part.lse);
  if (top == -INFINITY) return top;
  for (const Part& part : parts) sum += std::exp(part.lse - top);
  return top + std::log(sum);
}

// dk or dv under summation.
struct Sum {
  Tensor to;
  std::vector<double> values;

  explicit Sum(const Tensor& gradient)
      : to(gradient), values(to.data ? size_t(to.extent.batch) * size_t(to.extent.seq) * size_t(to.extent.head) *
                                           size_t(to.extent.dim)
                                     : 0) {}
  double* row(int64_t b, int64_t s, int64_t h) {
    return values.data() + ((b * to.extent.seq + s) * to.extent.head + h) * to.extent.dim;
  }
  void write() {
    for (int64_t b = 0; to.data && b < to.extent.batch; ++b)
      for (int64_t s = 0; s < to.extent.seq; ++s)
        for (int64_t h = 0; h < to.extent.head; ++h)
          for (int64_t d = 0; d < to.extent.dim; ++d) save(to, b, s, h, d, row(b, s, h)[d]);
  }
};

void add_query(const Reading& one, int64_t b, int64_t h, int64_t i, Sum& dk, Sum& dv) {
  const Problem& p = one.p;
  const Args& a = one.a;
  const int64_t hk = one.kv_head(h);
  const bool joined = one.d.norm == Dilated::Norm::lse;
  const double factor = one.d.norm == Dilated::Norm::divide ? 1.0 / one.d.branches : 1;
  const double lse = load(a[Role::lse], b, i, h, 0);
  const double d_lse = a.given(Role::d_lse) ? load(a[Role::d_lse], b, i, h, 0) : 0;
  const double D_joined = dot(a[Role::d_out], {b, i}, h, a[Role::out], {b, i}, h, p.dim_v) - d_lse;
  const auto terms = [&](Role of, int64_t row, int64_t head) {
    const auto square = [&](Role r, int64_t s, int64_t x) { return dot(a[r], {b, s}, x, a[r], {b, s}, x, p.dim_v); };
    return std::sqrt(square(Role::d_out, i, h) * square(of, row, head) / p.dim_v);
  };
  std::vector<double> dq(size_t(p.dim_qk));
  for (const Part& part : one.parts(b, h, i)) {
    double D_own = -d_lse;
    for (int x = 0; x < p.dim_v; ++x) D_own += load(a[Role::d_out], b, i, h, x) * part.out[size_t(x)];
    const auto own_terms = [&] {
      double square = 0;
      for (const double x : part.out) square += x * x;
      return std::sqrt(square * dot(a[Role::d_out], {b, i}, h, a[Role::d_out], {b, i}, h, p.dim_v) / p.dim_v);
    };
    const bool whole = joined && !one.d.detached;
    const double D = whole ? naive_sum(D_joined, [&] { return terms(Role::out, i, h); })
                           : naive_out(naive_sum(D_own, own_terms), own_terms);
    for (const Term& t : part.terms) {
      const double P = factor * weight_given(joined ? lse : part.lse, t.product);
      const double dP = naive_sum(dot(a[Role::d_out], {b, i}, h, a[Role::v], {b, t.key}, hk, p.dim_v),
                                  [&] { return terms(Role::v, t.key, hk); });
      const double d_dot = P * (dP - D) * one.scale;
      if (dv.to.data) add_row(dv.row(b, t.key, hk), P, a[Role::d_out], {b, i}, h, p.dim_v);
      if (dk.to.data) add_row(dk.row(b, t.key, hk), d_dot, a[Role::q], {b, i}, h, p.dim_qk);
      add_row(dq.data(), d_dot, a[Role::k], {b, t.key}, hk, p.dim_qk);
    }
  }
  if (!a.given(Role::dq)) return;
  for (int x = 0; x < p.dim_qk; ++x) save(a[Role::dq], b, i, h, x, dq[size_t(x)]);
}

}  // namespace

Status forward_dilated(const Problem& p, const Args& a) {
  const Reading one(p, a);
  const bool joined = one.d.norm == Dilated::Norm::lse;
  const double factor = one.d.norm == Dilated::Norm::divide ? 1.0 / one.d.branches : 1;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < one.length; ++i) {
        const std::vector<Part> parts = one.parts(b, h, i);
        const double lse = lse_of(parts);
        for (int x = 0; x < p.dim_v; ++x) {
          double sum = 0;
          for (const Part& part : parts)
            if (part.lse != -INFINITY) sum += (joined ? std::exp(part.lse - lse) : factor) * part.out[size_t(x)];
          save(a[Role::out], b, i, h, x, sum);
        }
        if (a.given(Role::lse)) save(a[Role::lse], b, i, h, 0, lse);
      }
  return Status::good();
}

// Like every backward it takes out and lse as given. Quantities that depend on a single branch (all but norm=lse with
// the exact gradient) are recomputed for that branch.
Status backward_dilated(const Problem& p, const Args& a) {
  const Reading one(p, a);
  Sum dk(a[Role::dk]), dv(a[Role::dv]);
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < one.length; ++i) add_query(one, b, h, i, dk, dv);
  dk.write();
  dv.write();
  return Status::good();
}

}  // namespace attune::reference_detail
