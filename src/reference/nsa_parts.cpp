// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "reference/naive.h"
#include "reference/nsa.h"

namespace attune::reference_detail {
namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) {
  const double y = 1 / (1 + std::exp(-x));
  return y * (1 + x * (1 - y));
}

// Hidden values of the mlp before silu, for tokens first ... first + l of a head.
std::vector<double> hidden(const Nsa& nsa, const Weights& w, const Grid& raw, int64_t first, int64_t h) {
  std::vector<double> x(size_t(nsa.width(int(raw.dim))));
  for (size_t j = 0; j < x.size(); ++j) {
    x[j] = w.at(2, 0, 0, int64_t(j));
    for (int64_t t = 0; t < nsa.l; ++t)
      for (int64_t e = 0; e < raw.dim; ++e)
        x[j] += w.at(1, int64_t(j), t, e) * (raw.row(first + t, h)[e] + w.at(0, t, 0, e));
  }
  return x;
}

double product(const Grid& a, int64_t i, int64_t head_a, const Grid& b, int64_t j, int64_t head_b) {
  double sum = 0;
  for (int64_t d = 0; d < a.dim; ++d) sum += a.row(i, head_a)[d] * b.row(j, head_b)[d];
  return sum;
}

}  // namespace

double Weights::at(int n, int64_t s, int64_t h, int64_t d) const {
  return load(tensor[n], 0, s, tensor[n].extent.head == 1 ? 0 : h, d);
}

void Weights::add(int n, int64_t s, int64_t h, int64_t d, double x) const {
  const Tensor& t = gradient[n];
  if (!t.data) return;
  if (t.extent.head == 1) h = 0;
  save(t, 0, s, h, d, load(t, 0, s, h, d) + x);
}

Grid compress(const Nsa& nsa, const Weights& w, const Grid& raw) {
  int64_t count = 0;
  while (count * nsa.d + nsa.l <= raw.tokens) ++count;
  Grid out(count, raw.heads, raw.dim);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t h = 0; h < raw.heads; ++h) {
      const int64_t first = i * nsa.d;
      double* to = out.row(i, h);
      if (nsa.phi == Phi::mlp) {
        const std::vector<double> x = hidden(nsa, w, raw, first, h);
        for (int64_t c = 0; c < raw.dim; ++c) {
          to[c] = w.at(4, 0, 0, c);
          for (size_t j = 0; j < x.size(); ++j) to[c] += w.at(3, c, 0, int64_t(j)) * silu(x[j]);
        }
        continue;
      }
      for (int64_t t = 0; t < nsa.l; ++t)
        for (int64_t c = 0; c < raw.dim; ++c)
          to[c] += raw.row(first + t, h)[c] * (nsa.phi == Phi::conv ? w.at(0, t, h, c) : 1. / nsa.l);
    }
  return out;
}

void compress_backward(const Nsa& nsa, const Weights& w, const Grid& raw, const Grid& d_out, Grid& d_raw) {
  for (int64_t i = 0; i < d_out.tokens; ++i)
    for (int64_t h = 0; h < raw.heads; ++h) {
      const int64_t first = i * nsa.d;
      const double* dy = d_out.row(i, h);
      if (nsa.phi == Phi::mlp) {
        const std::vector<double> x = hidden(nsa, w, raw, first, h);
        for (int64_t c = 0; c < raw.dim; ++c) w.add(4, 0, 0, c, dy[c]);
        for (size_t n = 0; n < x.size(); ++n) {
          const int64_t j = int64_t(n);
          double dx = 0;
          for (int64_t c = 0; c < raw.dim; ++c) {
            dx += dy[c] * w.at(3, c, 0, j);
            w.add(3, c, 0, j, dy[c] * silu(x[n]));
          }
          dx *= silu_slope(x[n]);
          w.add(2, 0, 0, j, dx);
          for (int64_t t = 0; t < nsa.l; ++t)
            for (int64_t e = 0; e < raw.dim; ++e) {
              d_raw.row(first + t, h)[e] += dx * w.at(1, j, t, e);
              w.add(0, t, 0, e, dx * w.at(1, j, t, e));
              w.add(1, j, t, e, dx * (raw.row(first + t, h)[e] + w.at(0, t, 0, e)));
            }
        }
        continue;
      }
      for (int64_t t = 0; t < nsa.l; ++t)
        for (int64_t c = 0; c < raw.dim; ++c) {
          d_raw.row(first + t, h)[c] += dy[c] * (nsa.phi == Phi::conv ? w.at(0, t, h, c) : 1. / nsa.l);
          if (nsa.phi == Phi::conv) w.add(0, t, h, c, dy[c] * raw.row(first + t, h)[c]);
        }
    }
}

void attend(const Grid& q, const Grid& k, const Grid& v, double scale, const Seen& seen, Grid& out, Grid& lse) {
  const int64_t group = q.heads / k.heads;
  for (int64_t i = 0; i < q.tokens; ++i)
    for (int64_t h = 0; h < q.heads; ++h) {
      const Keys keys = seen(i, h / group);
      std::vector<double> logit;
      double top = -INFINITY, sum = 0;
      for (const int64_t j : keys) {
        logit.push_back(scale * product(q, i, h, k, j, h / group));
        top = std::fmax(top, logit.back());
      }
      for (const double x : logit) sum += std::exp(x - top);
      for (size_t n = 0; n < keys.size(); ++n) {
        const double P = std::exp(logit[n] - top) / sum;
        for (int64_t d = 0; d < v.dim; ++d) out.row(i, h)[d] += P * v.row(keys[n], h / group)[d];
      }
      *lse.row(i, h) = keys.empty() ? -INFINITY : top + std::log(sum);
    }
}

void attend_backward(const Grid& q, const Grid& k, const Grid& v, double scale, const Seen& seen, const Grid& out,
                     const Grid& lse, const Grid& d_out, const Grid& d_lse, Grid& dq, Grid& dk, Grid& dv) {
  const int64_t group = q.heads / k.heads;
  for (int64_t i = 0; i < q.tokens; ++i)
    for (int64_t h = 0; h < q.heads; ++h) {
      const auto terms = [&](const Grid& x, int64_t row, int64_t head) {
        return std::sqrt(product(d_out, i, h, d_out, i, h) * product(x, row, head, x, row, head) / double(v.dim));
      };
      const double D = naive_sum(product(d_out, i, h, out, i, h) - (d_lse.tokens ? *d_lse.row(i, h) : 0),
                                 [&] { return terms(out, i, h); });
      if (*lse.row(i, h) == -INFINITY) continue;
      for (const int64_t j : seen(i, h / group)) {
        const int64_t g = h / group;
        const double P = weight_given(*lse.row(i, h), scale * product(q, i, h, k, j, g));
        const double dP = naive_sum(product(d_out, i, h, v, j, g), [&] { return terms(v, j, g); });
        const double dS = naive_score(scale * P * (dP - D));
        for (int64_t d = 0; d < v.dim; ++d) dv.row(j, g)[d] += P * d_out.row(i, h)[d];
        for (int64_t d = 0; d < q.dim; ++d) {
          dq.row(i, h)[d] += dS * k.row(j, g)[d];
          dk.row(j, g)[d] += dS * q.row(i, h)[d];
        }
      }
    }
}

Keys select(const Nsa& nsa, const Grid& q, const Grid& compressed, const Grid& lse, double scale, int64_t i, int64_t t,
            int64_t g) {
  if (t < 0) return {};
  const int64_t own = t / nsa.s, group = q.heads / compressed.heads;
  std::set<int64_t> taken{0, std::max<int64_t>(0, own - 1), own};
  std::vector<int64_t> candidates;
  for (int64_t m = 0; (m + 1) * nsa.s <= t + 1; ++m)
    if (!taken.count(m)) candidates.push_back(m);
  std::vector<double> score(size_t(own + 1), 0.0);
  for (int64_t h = g * group; h < (g + 1) * group; ++h)
    for (int64_t c = 0; c * nsa.d + nsa.l - 1 <= t; ++c) {
      const double p = weight_given(*lse.row(i, h), scale * product(q, i, h, compressed, c, g));
      for (int64_t m = 0; m <= own; ++m) {
        const int64_t from = std::max<int64_t>(c * nsa.d, m * nsa.s);
        const int64_t until = std::min<int64_t>(c * nsa.d + nsa.l, (m + 1) * nsa.s);
        if (from < until) score[size_t(m)] += p * double(until - from) / nsa.l;
      }
    }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](int64_t a, int64_t b) { return score[size_t(a)] > score[size_t(b)]; });
  for (const int64_t m : candidates)
    if (int64_t(taken.size()) < nsa.n) taken.insert(m);
  return {taken.begin(), taken.end()};
}

void gates(GateOf kind, const double logit[3], double gate[3]) {
  double sum = 0;
  const double top = std::max({logit[0], logit[1], logit[2]});
  for (int n = 0; n < 3; ++n) sum += std::exp(logit[n] - top);
  for (int n = 0; n < 3; ++n)
    gate[n] = kind == GateOf::none      ? logit[n]
              : kind == GateOf::sigmoid ? 1 / (1 + std::exp(-logit[n]))
                                        : std::exp(logit[n] - top) / sum;
}

void gates_backward(GateOf kind, const double gate[3], const double d_gate[3], double d_logit[3]) {
  const double mean = gate[0] * d_gate[0] + gate[1] * d_gate[1] + gate[2] * d_gate[2];
  for (int n = 0; n < 3; ++n)
    d_logit[n] = kind == GateOf::none      ? d_gate[n]
                 : kind == GateOf::sigmoid ? d_gate[n] * gate[n] * (1 - gate[n])
                                           : gate[n] * (d_gate[n] - mean);
}

}  // namespace attune::reference_detail
