// SPDX-License-Identifier: Apache-2.0
// The definition of `adaptive`: every score from the network as written, one block pair at a time, and attention with a
// bias that is the block's score, or -inf for a block that is not kept.
#include <algorithm>

#include "core/variant/adaptive.h"
#include "reference/definition.h"
#include "reference/variants.h"

namespace attune {
extern const Backend reference;
}

namespace attune::reference_detail {
namespace {

using T = AdaptiveTensor;

void save_number(const Tensor& t, int64_t b, int64_t h, int64_t n, int64_t x) {
  if (t.dtype == DType::i32) view<int32_t>(t).row(b, 0, h)[n] = int32_t(x);
  else save(t, b, 0, h, n, double(x));
}

// A tensor of doubles with the extents of another tensor, or with its own.
struct Doubles {
  std::vector<double> values{};
  Tensor t{};

  explicit Doubles(Extents e, double fill = 0) : values(size_t(int64_t(e.batch) * e.seq * e.head * e.dim), fill) {
    t = {.data = values.data(), .dtype = DType::f64, .extent = e,
         .stride = {int64_t(e.seq) * e.head * e.dim, int64_t(e.head) * e.dim, e.dim}};
  }
  double& at(int64_t b, int64_t s, int64_t h, int64_t d) { return view<double>(t).row(b, s, h)[d]; }
};

struct Network {
  const Problem& p;
  const Args& a;
  Adaptive say;

  Network(const Problem& problem, const Args& args) : p(problem), a(args), say(adaptive_of(problem)) {}
  double weight(T t, int64_t row, int64_t h, int64_t d) const {
    return load(a[role(t)], 0, row, say.per_head && t >= T::w1 && t <= T::b2 ? h : 0, d);
  }
  double temperature() const {
    return std::fmax(std::exp(weight(T::log_temperature, 0, 0, 0)), double(kLeastTemperature));
  }
  int64_t blocks(int64_t length) const { return (length + say.block - 1) / say.block; }
  std::vector<double> mean(const Definition& one, Role r, int64_t h, int64_t block) const {
    std::vector<double> sum(size_t(p.dim_qk));
    const int64_t length = r == Role::q ? one.len_q : one.len_k, first = block * say.block;
    const int64_t last = std::min<int64_t>(length, first + say.block);
    for (int64_t n = first; n < last; ++n)
      add_row(sum.data(), 1. / double(last - first), a[r], r == Role::q ? one.query(n) : one.key(n), h, p.dim_qk);
    return sum;
  }
  // wq qbar + bq, or wk kbar + bk.
  std::vector<double> projected(T w, T bias, const std::vector<double>& x) const {
    std::vector<double> y(x.size());
    for (size_t e = 0; e < y.size(); ++e) {
      y[e] = weight(bias, 0, 0, int64_t(e));
      for (size_t d = 0; d < x.size(); ++d) y[e] += weight(w, int64_t(e), 0, int64_t(d)) * x[d];
    }
    return y;
  }
  // The input of relu for two projected summaries.
  double before(int64_t h, int64_t unit, const std::vector<double>& q, const std::vector<double>& k) const {
    double x = weight(T::b1, 0, h, unit);
    for (size_t e = 0; e < q.size(); ++e)
      x += weight(T::w1, unit, h, int64_t(e)) * q[e] + weight(T::w1, unit, h, int64_t(e + q.size())) * k[e];
    return x;
  }
  double score(int64_t h, const std::vector<double>& q, const std::vector<double>& k) const {
    double s = weight(T::b2, 0, h, 0);
    for (int64_t unit = 0; unit < say.hidden; ++unit)
      s += weight(T::w2, 0, h, unit) * std::fmax(0., before(h, unit, q, k));
    return s / temperature();
  }
  bool shown(const Definition& one, int64_t h, int64_t i, int64_t j) const {
    for (int64_t s = i * say.block; s < std::min<int64_t>(one.len_q, (i + 1) * say.block); ++s)
      for (int64_t t = j * say.block; t < std::min<int64_t>(one.len_k, (j + 1) * say.block); ++t)
        if (one.sees(h, s, t)) return true;
    return false;
  }
  double noise(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!say.gumbel) return 0;
    const Tensor& seed = a[role(T::noise)];
    const uint32_t word = noise_word(uint64_t(integer(seed, 0, 0, 0)), uint64_t(integer(seed, 0, 0, 1)),
                                     int(b * p.heads_q + h), int(i), int(j));
    return -std::log(-std::log((double(word) + 0.5) / 4294967296.));
  }
};

// Attention with a bias for every pair: the dense definition.
Status run_dense(const Problem& p, const Args& a, const Tensor& bias, const Tensor& d_bias) {
  Plan plan{.problem = p};
  plan.problem.variant = {};
  plan.problem.set(Option::bias);
  plan.problem.dtype.bias = DType::f64;
  Args with = a;
  with[Role::bias] = bias, with[Role::d_bias] = d_bias;
  return reference.run(plan, with, {}, nullptr);
}

struct Kept { int64_t block; double score; };

}  // namespace

Status adaptive_forward(const Problem& p, const Args& a) {
  const Network net(p, a);
  Doubles bias({p.batch, p.len_q, p.heads_q, p.len_k}, -INFINITY);
  const Tensor &begin = a[role(T::begin)], &column = a[role(T::column)], &scores = a[role(T::scores)];
  int64_t entry = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Definition one(p, a, b);
    for (int64_t h = 0; h < p.heads_q; ++h) {
      std::vector<std::vector<double>> keys;
      for (int64_t j = 0; j < net.blocks(one.len_k); ++j)
        keys.push_back(net.projected(T::wk, T::bk, net.mean(one, Role::k, one.kv_head(h), j)));
      for (int64_t i = 0; i <= net.blocks(p.len_q); ++i) {
        if (begin.data) save_number(begin, b, h, i, entry);
        if (i >= net.blocks(one.len_q)) continue;
        const auto q = net.projected(T::wq, T::bq, net.mean(one, Role::q, h, i));
        std::vector<Kept> row;
        for (int64_t j = 0; j < int64_t(keys.size()); ++j)
          if (net.shown(one, h, i, j)) row.push_back({j, net.score(h, q, keys[size_t(j)])});
        const auto key = [&](const Kept& x) { return x.score + net.noise(b, h, i, x.block); };
        std::stable_sort(row.begin(), row.end(), [&](const Kept& x, const Kept& y) { return key(x) > key(y); });
        row.resize(size_t(net.say.kept(int(row.size()))));
        std::sort(row.begin(), row.end(), [](const Kept& x, const Kept& y) { return x.block < y.block; });
        for (const Kept& x : row) {
          if (column.data) save_number(column, 0, 0, entry, x.block);
          if (scores.data) save(scores, 0, 0, 0, entry, x.score);
          ++entry;
          const int64_t size = net.say.block;
          for (int64_t s = i * size; s < std::min<int64_t>(one.len_q, (i + 1) * size); ++s)
            for (int64_t t = x.block * size; t < std::min<int64_t>(one.len_k, (x.block + 1) * size); ++t)
              bias.at(b, s, h, t) = x.score;
        }
      }
    }
  }
  for (; entry < adaptive_bound(p, net.say); ++entry) {
    if (column.data) save_number(column, 0, 0, entry, -1);
    if (scores.data) save(scores, 0, 0, 0, entry, 0);
  }
  return run_dense(p, a, bias.t, {});
}

// Uses the lists and scores that the forward saved; recomputes the inputs of the scores.
Status adaptive_backward(const Problem& p, const Args& a) {
  const Network net(p, a);
  const int64_t dim = p.dim_qk, block = net.say.block;
  const Tensor &begin = a[role(T::begin)], &column = a[role(T::column)], &scores = a[role(T::scores)];
  Doubles bias({p.batch, p.len_q, p.heads_q, p.len_k}, -INFINITY), d_bias(bias.t.extent);
  Doubles dq(a[Role::q].extent), dk(a[Role::k].extent);
  std::vector<Doubles> grad;
  for (int n = 0; n <= int(T::log_temperature); ++n) grad.emplace_back(a[variant_tensor(n)].extent);
  const auto d_weight = [&](T t, int64_t row, int64_t h, int64_t d) -> double& {
    return grad[size_t(t)].at(0, row, net.say.per_head && t >= T::w1 && t <= T::b2 ? h : 0, d);
  };
  // Calls f(b, h, i, j, entry, definition) for every entry.
  const auto each = [&](auto f) {
    for (int64_t b = 0; b < p.batch; ++b) {
      const Definition one(p, a, b);
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t i = 0; i < net.blocks(one.len_q); ++i)
          for (int64_t n = integer(begin, b, h, i); n < integer(begin, b, h, i + 1); ++n)
            f(b, h, i, integer(column, 0, 0, n), n, one);
    }
  };
  const auto pairs = [&](const Definition& one, int64_t i, int64_t j, auto f) {
    for (int64_t s = i * block; s < std::min(one.len_q, (i + 1) * block); ++s)
      for (int64_t t = j * block; t < std::min(one.len_k, (j + 1) * block); ++t) f(s, t);
  };
  each([&](int64_t b, int64_t h, int64_t i, int64_t j, int64_t n, const Definition& one) {
    pairs(one, i, j, [&](int64_t s, int64_t t) { bias.at(b, s, h, t) = load(scores, 0, 0, 0, n); });
  });
  Args dense = a;
  dense[Role::dq] = dq.t, dense[Role::dk] = dk.t;
  if (Status s = run_dense(p, dense, bias.t, d_bias.t); !s.ok()) return s;

  each([&](int64_t b, int64_t h, int64_t i, int64_t j, int64_t n, const Definition& one) {
    double d_score = 0;
    pairs(one, i, j, [&](int64_t s, int64_t t) { d_score += d_bias.at(b, s, h, t); });
    if (std::exp(net.weight(T::log_temperature, 0, 0, 0)) > double(kLeastTemperature))
      d_weight(T::log_temperature, 0, 0, 0) -= d_score * load(scores, 0, 0, 0, n);
    d_score /= net.temperature();
    const auto q_mean = net.mean(one, Role::q, h, i), k_mean = net.mean(one, Role::k, one.kv_head(h), j);
    const auto q = net.projected(T::wq, T::bq, q_mean), k = net.projected(T::wk, T::bk, k_mean);
    std::vector<double> d_q(q.size()), d_k(k.size());  // gradients of the projected summaries
    d_weight(T::b2, 0, h, 0) += d_score;
    for (int64_t unit = 0; unit < net.say.hidden; ++unit) {
      const double x = net.before(h, unit, q, k);
      if (x <= 0) continue;
      d_weight(T::w2, 0, h, unit) += d_score * x;
      const double d_x = d_score * net.weight(T::w2, 0, h, unit);
      d_weight(T::b1, 0, h, unit) += d_x;
      for (int64_t e = 0; e < dim; ++e) {
        d_weight(T::w1, unit, h, e) += d_x * q[size_t(e)];
        d_weight(T::w1, unit, h, e + dim) += d_x * k[size_t(e)];
        d_q[size_t(e)] += d_x * net.weight(T::w1, unit, h, e);
        d_k[size_t(e)] += d_x * net.weight(T::w1, unit, h, e + dim);
      }
    }
    const int64_t rows_q = std::min(block, one.len_q - i * block), rows_k = std::min(block, one.len_k - j * block);
    for (int64_t e = 0; e < dim; ++e) {
      d_weight(T::bq, 0, 0, e) += d_q[size_t(e)], d_weight(T::bk, 0, 0, e) += d_k[size_t(e)];
      for (int64_t d = 0; d < dim; ++d) {
        d_weight(T::wq, e, 0, d) += d_q[size_t(e)] * q_mean[size_t(d)];
        d_weight(T::wk, e, 0, d) += d_k[size_t(e)] * k_mean[size_t(d)];
        const double to_q = d_q[size_t(e)] * net.weight(T::wq, e, 0, d) / double(rows_q);
        const double to_k = d_k[size_t(e)] * net.weight(T::wk, e, 0, d) / double(rows_k);
        for (int64_t s = 0; s < rows_q; ++s) {
          const Place at = one.query(i * block + s);
          dq.at(at.batch, at.seq, h, d) += to_q;
        }
        for (int64_t t = 0; t < rows_k; ++t) {
          const Place at = one.key(j * block + t);
          dk.at(at.batch, at.seq, one.kv_head(h), d) += to_k;
        }
      }
    }
  });

  for (int n = 0; n <= int(T::log_temperature); ++n)
    if (const Tensor& to = a[d_variant_tensor(n)]; to.data)
      for (int s = 0; s < to.extent.seq; ++s)
        for (int h = 0; h < to.extent.head; ++h)
          for (int d = 0; d < to.extent.dim; ++d) save(to, 0, s, h, d, grad[size_t(n)].at(0, s, h, d));
  for (int64_t b = 0; a.given(Role::dq) && b < p.batch; ++b) {  // only the rows of its queries
    const Definition one(p, a, b);
    for (int64_t i = 0; i < one.len_q; ++i)
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t d = 0; d < dim; ++d) {
          const auto at = one.query(i);
          save(a[Role::dq], at.batch, at.seq, h, d, dq.at(at.batch, at.seq, h, d));
        }
  }
  const Extents& e = a[Role::dk].extent;
  for (int b = 0; a.given(Role::dk) && b < e.batch; ++b)
    for (int s = 0; s < e.seq; ++s)
      for (int h = 0; h < e.head; ++h)
        for (int d = 0; d < e.dim; ++d) save(a[Role::dk], b, s, h, d, dk.at(b, s, h, d));
  return Status::good();
}

}  // namespace attune::reference_detail
