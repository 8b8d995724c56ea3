// SPDX-License-Identifier: Apache-2.0
// The definition of attention on one sequence, in double and written to be read: the location of its rows, the keys
// that a query sees, the value of a logit. It shares no index arithmetic with the kernels (no walk, Band, Sequence,
// merge or score policy), because then it could not reveal their bugs. It shares only other definitions: the number
// formats and the dropout mask. Values in tensors are trusted: they are checked before a run.
#pragma once
#include <bit>
#include <cmath>
#include <vector>

#include "core/dropout.h"
#include "core/formula/of_problem.h"
#include "plan/backend.h"
#include "reference/formula.h"

namespace attune::reference_detail {

inline double load(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d) {
  const int64_t at = b * t.stride.batch + s * t.stride.seq + h * t.stride.head + d;
  switch (t.dtype) {
    case DType::f64: return static_cast<const double*>(t.data)[at];
    case DType::f32: return static_cast<const float*>(t.data)[at];
    case DType::f16: return static_cast<const F16*>(t.data)[at];
    case DType::bf16: return static_cast<const Bf16*>(t.data)[at];
    case DType::e4m3: return static_cast<const E4m3*>(t.data)[at];
    case DType::none: case DType::i32: case DType::i64: break;
  }
  return NAN;
}

inline void save(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d, double x) {
  const int64_t at = b * t.stride.batch + s * t.stride.seq + h * t.stride.head + d;
  switch (t.dtype) {
    case DType::f64: static_cast<double*>(t.data)[at] = x; break;
    case DType::f32: static_cast<float*>(t.data)[at] = float(x); break;
    case DType::f16: static_cast<F16*>(t.data)[at] = F16(float(x)); break;
    case DType::bf16: static_cast<Bf16*>(t.data)[at] = Bf16(float(x)); break;
    case DType::e4m3: static_cast<E4m3*>(t.data)[at] = E4m3(float(x)); break;
    case DType::none: case DType::i32: case DType::i64: break;
  }
}

inline int64_t integer(const Tensor& t, int64_t b, int64_t h, int64_t n) {
  const int64_t at = b * t.stride.batch + h * t.stride.head + n;
  return t.dtype == DType::i64 ? static_cast<const int64_t*>(t.data)[at] : static_cast<const int32_t*>(t.data)[at];
}

// P in a backward, which is given lse in f32. Where one ulp of lse changes a weight substantially, lse is lowered by
// several ulps and P is capped at 1. The largest logit of a row then has P = 1.
inline double weight_given(double lse, double logit) {
  if (std::fabs(lse) < 0x1p24 / 1.4426950408889634) return std::exp(logit - lse);
  const double x = logit - lse + std::fabs(lse) * 0x1p-19;
  return std::exp(x > 0 ? 0 : x);  // propagates NaN
}

struct Place { int64_t batch, seq; };  // a row on these two axes

// Calls f with the elements of a row in their own type, so a sum over a row switches on the dtype once. Problems have
// floating dtypes only.
template <class F>
auto with_row(const Tensor& t, Place at, int64_t h, F f) {
  const int64_t first = at.batch * t.stride.batch + at.seq * t.stride.seq + h * t.stride.head;
  switch (t.dtype) {
    case DType::f64: return f(static_cast<const double*>(t.data) + first);
    case DType::f32: return f(static_cast<const float*>(t.data) + first);
    case DType::f16: return f(static_cast<const F16*>(t.data) + first);
    case DType::bf16: return f(static_cast<const Bf16*>(t.data) + first);
    default: return f(static_cast<const E4m3*>(t.data) + first);
  }
}

// Fast conversion of one element, which dominates a run.
template <class T>
double to_double(T x) { return double(x); }
inline double to_double(F16 x) {  // branch-free
  const uint32_t magnitude = uint32_t(x.bits & 0x7FFF) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t infinite = (0u - uint32_t(magnitude >= 0x7C00u << 13)) & 0x7F800000;
  return double(std::bit_cast<float>(finite | infinite | uint32_t(x.bits & 0x8000) << 16));
}

inline double dot(const Tensor& x, Place at_x, int64_t head_x, const Tensor& y, Place at_y, int64_t head_y, int dim) {
  return with_row(x, at_x, head_x, [&](const auto* a) {
    return with_row(y, at_y, head_y, [&](const auto* b) {
      double sum[8] = {};  // breaks the dependency chain
      int d = 0;
      for (; d + 8 <= dim; d += 8)
        for (int n = 0; n < 8; ++n) sum[n] += to_double(a[d + n]) * to_double(b[d + n]);
      for (; d < dim; ++d) sum[0] += to_double(a[d]) * to_double(b[d]);
      return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    });
  });
}

// to += factor * row
inline void add_row(double* to, double factor, const Tensor& t, Place at, int64_t h, int dim) {
  with_row(t, at, h, [&](const auto* x) {
    for (int d = 0; d < dim; ++d) to[d] += factor * to_double(x[d]);
  });
}

// Queries are numbered i = 0 ... len_q - 1, keys j = 0 ... len_k - 1, within the sequence and after its padding.
struct Definition {
  const Problem& p;
  const Args& a;
  int64_t b;
  int64_t q_row = 0, len_q = 0;                // first row of its queries
  int64_t k_row = 0, padding = 0, len_k = 0;   // first row of its keys, padding included
  int64_t added = 0;                           // number of appended keys, which are the last ones
  double scale = 0;
  Dropout dropout{};
  Formula formula{};  // the user's mask and score; neither, without one

  Definition(const Problem& problem, const Args& args, int64_t sequence) : p(problem), a(args), b(sequence) {
    len_q = a[Role::q].extent.seq;
    len_k = a[Role::k].extent.seq;
    if (a.given(Role::cu_q)) span(Role::cu_q, q_row, len_q);
    if (p.keys == KeySource::ragged) span(Role::cu_k, k_row, len_k);
    if (p.keys == KeySource::paged) len_k = int64_t(a[Role::page_table].extent.dim) * p.page;
    if (a.given(Role::used_q)) len_q = integer(a[Role::used_q], b, 0, 0);
    if (p.has(Option::append)) added = a[Role::k_new].extent.seq;
    if (a.given(Role::used_k)) len_k = integer(a[Role::used_k], b, 0, 0) + added;
    if (a.given(Role::left_pad)) padding = integer(a[Role::left_pad], b, 0, 0);
    len_k -= padding;
    scale = a.scale != 0.f ? double(a.scale) : 1 / std::sqrt(double(p.dim_qk));
    dropout = dropout_of(p, a);
    formula = formula_of(p);
  }

  int64_t kv_head(int64_t h) const { return h / (p.heads_q / p.heads_kv); }
  Place query(int64_t i) const { return a.given(Role::cu_q) ? Place{0, q_row + i} : Place{b, i}; }
  Place key(int64_t j) const {
    const int64_t at = padding + j;
    if (p.keys == KeySource::ragged) return {0, k_row + at};
    if (p.keys == KeySource::paged) return {integer(a[Role::page_table], b, 0, at / p.page), at % p.page};
    return {a.given(Role::cache_index) ? integer(a[Role::cache_index], b, 0, 0) : b, at};
  }

  int64_t k_position(int64_t j) const {
    const int64_t key_0 = p.mask.align == Align::absolute ? integer(a[Role::positions], b, 0, 1) : 0;
    return key_0 + j * p.mask.k_step + p.mask.k_phase;
  }
  int64_t q_position(int64_t i) const {
    if (p.mask.align == Align::absolute) return i + integer(a[Role::positions], b, 0, 0);
    if (p.mask.align == Align::top_left) return i;
    return k_position(len_k - 1) - (len_q - 1 - i);  // the last query is at the last key
  }
  bool sees(int64_t h, int64_t i, int64_t j) const {
    const Mask& m = p.mask;
    const int64_t ahead = k_position(j) - q_position(i);
    if (m.kind == MaskKind::causal && ahead > 0) return false;
    if (m.kind == MaskKind::window && m.left != kNoLimit && -ahead > m.left) return false;
    if (m.kind == MaskKind::window && m.right != kNoLimit && ahead > m.right) return false;
    if (m.blocks.q && entry(h, i, j) < 0) return false;
    return formula.mask < 0 || value_at(formula.mask, 0, h, i, j).value != 0;
  }
  // A node of the formula for a pair whose logit is s; by_element: its slope by that element of an array, not by s.
  Dual value_at(int node, double s, int64_t h, int64_t i, int64_t j, int by_element = -1) const {
    const FormulaPair pair{s, b, h, kv_head(h), q_position(i), k_position(j), len_q, len_k};
    return FormulaWalk{formula, a, pair, by_element}.walk(node);
  }
  // The entry of the block list that contains a pair; -1: none.
  int64_t entry(int64_t h, int64_t i, int64_t j) const {
    const int64_t q_block = i / p.mask.blocks.q, k_block = j / p.mask.blocks.k;
    const int64_t end = integer(a[Role::block_begin], b, h, q_block + 1);
    for (int64_t n = integer(a[Role::block_begin], b, h, q_block); n < end; ++n)
      if (integer(a[Role::block_column], 0, 0, n) == k_block) return n;
    return -1;
  }

  double product(int64_t h, int64_t i, int64_t j) const {  // scale * q . k
    return scale * dot(a[Role::q], query(i), h, a[Role::k], key(j), kv_head(h), p.dim_qk);
  }
  double logit(double product, int64_t h, int64_t i, int64_t j) const {
    double s = product;
    if (p.has(Option::softcap)) s = a.softcap * std::tanh(s / a.softcap);
    if (p.has(Option::bias)) s += bias(h, i, j);
    if (p.has(Option::block_bias)) s += load(a[Role::bias], 0, 0, 0, entry(h, i, j));
    if (p.has(Option::alibi)) s -= load(a[Role::slopes], 0, 0, h, 0) * std::fabs(double(k_position(j) - q_position(i)));
    return s;
  }
  // The logit of the softmax: the user's score of it.
  double scored(double logit, int64_t h, int64_t i, int64_t j) const {
    return formula.score < 0 ? logit : value_at(formula.score, logit, h, i, j).value;
  }
  double logit_slope(double product) const {  // d logit / d product
    if (!p.has(Option::softcap)) return 1;
    const double t = std::tanh(product / a.softcap);
    return 1 - t * t;
  }
  double bias(int64_t h, int64_t i, int64_t j) const {
    const Extents& e = a[Role::bias].extent;
    return load(a[Role::bias], e.batch == 1 ? 0 : b, e.seq == 1 ? 0 : i, e.head == 1 ? 0 : h, e.dim == 1 ? 0 : j);
  }
  double keep(int64_t h, int64_t i, int64_t j) const {  // factor of a weight under dropout
    if (!p.has(Option::dropout)) return 1;
    return dropout.factor(uint32_t(b * p.heads_q + h), q_position(i), k_position(j));
  }

 private:
  void span(Role cu, int64_t& first, int64_t& length) const {
    first = integer(a[cu], 0, 0, b);
    length = integer(a[cu], 0, 0, b + 1) - first;
  }
};

// Appends and rotates if the problem has the options, and holds the resulting arguments; in append.cpp.
struct Appended {
  Args args;  // with rotated queries in place of q
  std::vector<double> rotated{};

  Appended(const Problem&, const Args&);
};

Status run_backward(const Problem&, const Args&);

}  // namespace attune::reference_detail
