// SPDX-License-Identifier: Apache-2.0
// The modules in double, written as formulas. The library's modules are compared with them, and their finite
// differences give the gradients. Shares only parameter names with src/modules.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace plain {

using Vector = std::vector<double>;
using Parameters = std::map<std::string, Vector>;

struct Shape {
  int batch, len, embed, heads, heads_kv, dim, dim_v;
  int memory = 0, ffn = 0;
  bool causal = false, norm = false, pairs = false, half = false;
  double theta = 10000, eps = 1e-5;
  std::string act = "gelu";
};

inline Vector linear(const Vector& x, const Parameters& p, const std::string& name, int in) {
  const Vector& w = p.at(name + ".weight");
  const auto b = p.find(name + ".bias");
  const size_t out = w.size() / size_t(in), rows = x.size() / size_t(in);
  Vector y(rows * out);
  for (size_t r = 0; r < rows; ++r)
    for (size_t o = 0; o < out; ++o) {
      double sum = b == p.end() ? 0 : b->second[o];
      for (size_t i = 0; i < size_t(in); ++i) sum += x[r * size_t(in) + i] * w[o * size_t(in) + i];
      y[r * out + o] = sum;
    }
  return y;
}

inline Vector norm(const Vector& x, const Parameters& p, const std::string& name, double eps, bool rms) {
  const Vector& w = p.at(name + ".weight");
  Vector y(x.size());
  for (size_t r = 0; r < x.size() / w.size(); ++r) {
    const double* row = &x[r * w.size()];
    double mean = 0, square = 0;
    for (size_t d = 0; d < w.size() && !rms; ++d) mean += row[d] / double(w.size());
    for (size_t d = 0; d < w.size(); ++d) square += (row[d] - mean) * (row[d] - mean) / double(w.size());
    for (size_t d = 0; d < w.size(); ++d)
      y[r * w.size() + d] = (row[d] - mean) / std::sqrt(square + eps) * w[d] + (rms ? 0 : p.at(name + ".bias")[d]);
  }
  return y;
}

inline Vector sum(Vector a, const Vector& b) {
  for (size_t n = 0; n < a.size(); ++n) a[n] += b[n];
  return a;
}

inline double active(const std::string& act, double x) {
  if (act == "relu") return x > 0 ? x : 0;
  return act == "gelu" ? x * 0.5 * std::erfc(-x / std::sqrt(2.)) : x / (1 + std::exp(-x));
}

// Rotates [tokens, heads, dim] by the angle of each token's position.
inline void rotate(Vector& x, const Shape& s, int heads) {
  if (!s.pairs && !s.half) return;
  for (size_t r = 0; r < x.size() / size_t(heads * s.dim); ++r)
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < s.dim / 2; ++i) {
        const double angle = double(r % size_t(s.len)) * std::pow(s.theta, -2. * i / s.dim);
        const size_t at = (r * size_t(heads) + size_t(h)) * size_t(s.dim);
        double& a = x[at + size_t(s.pairs ? 2 * i : i)];
        double& b = x[at + size_t(s.pairs ? 2 * i + 1 : i + s.dim / 2)];
        const double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a * std::sin(angle);
        a = rotated;
      }
}

inline Vector attend(const Vector& q, const Vector& k, const Vector& v, const Shape& s, int keys, bool causal) {
  Vector out(size_t(s.batch) * size_t(s.len) * size_t(s.heads) * size_t(s.dim_v));
  const int group = s.heads / s.heads_kv;
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.heads; ++h)
      for (int i = 0; i < s.len; ++i) {
        const int seen = causal ? i + keys - s.len + 1 : keys;
        Vector weight(static_cast<size_t>(seen));
        double total = 0;
        for (int j = 0; j < seen; ++j) {
          double dot = 0;
          for (int d = 0; d < s.dim; ++d)
            dot += q[size_t(((b * s.len + i) * s.heads + h) * s.dim + d)] *
                   k[size_t(((b * keys + j) * s.heads_kv + h / group) * s.dim + d)];
          total += weight[size_t(j)] = std::exp(dot / std::sqrt(double(s.dim)));
        }
        for (int j = 0; j < seen; ++j)
          for (int d = 0; d < s.dim_v; ++d)
            out[size_t(((b * s.len + i) * s.heads + h) * s.dim_v + d)] +=
                weight[size_t(j)] / total * v[size_t(((b * keys + j) * s.heads_kv + h / group) * s.dim_v + d)];
      }
  return out;
}

inline Vector multihead(const Vector& x, const Vector* memory, const Parameters& p, const Shape& s,
                        const std::string& at, bool with_norm, bool causal, const std::string& out) {
  const Vector& from = memory ? *memory : x;
  Vector q = linear(x, p, at + "q_proj", s.embed), k = linear(from, p, at + "k_proj", s.embed);
  const Vector v = linear(from, p, at + "v_proj", s.embed);
  if (!memory) rotate(q, s, s.heads), rotate(k, s, s.heads_kv);
  Vector merged = attend(q, k, v, s, memory ? s.memory : s.len, causal);
  if (with_norm) merged = norm(merged, p, at + "norm", s.eps, false);
  return linear(merged, p, at + out, s.heads * s.dim_v);
}

inline Vector feed_forward(const Vector& x, const Parameters& p, const Shape& s, const std::string& at) {
  Vector inside = linear(norm(x, p, at + "norm1", s.eps, false), p, at + "linear1", s.embed);
  for (double& y : inside) y = active(s.act, y);
  return linear(norm(inside, p, at + "norm2", s.eps, false), p, at + "linear2", s.ffn);
}

inline Vector longnet(const Vector& x, const Vector* memory, const Parameters& p, const Shape& s) {
  Vector y =
      sum(x, multihead(norm(x, p, "norm1", s.eps, false), nullptr, p, s, "self_attn.", s.norm, s.causal, "out_proj"));
  if (memory)
    y = sum(y, multihead(norm(y, p, "norm2", s.eps, false), memory, p, s, "multihead_attn.", false, false, "out_proj"));
  return sum(y, feed_forward(y, p, s, "mlp."));
}

inline Vector llama(const Vector& x, const Parameters& p, const Shape& s) {
  const Vector y = sum(x, multihead(norm(x, p, "input_layernorm", s.eps, true), nullptr, p, s, "self_attn.", false,
                                    s.causal, "o_proj"));
  const Vector n = norm(y, p, "post_attention_layernorm", s.eps, true);
  Vector gate = linear(n, p, "mlp.gate_proj", s.embed);
  const Vector up = linear(n, p, "mlp.up_proj", s.embed);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = active("silu", gate[i]) * up[i];
  return sum(y, linear(gate, p, "mlp.down_proj", s.ffn));
}

}  // namespace plain
