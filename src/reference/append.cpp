// SPDX-License-Identifier: Apache-2.0
// The definition of append and rotary.
//
// Keys and values: row n of k_new and v_new becomes row used_k + n of the sequence's cache (without used_k: the last
// rows). All sequences append before any attends. No other row of the cache is touched.
//
// Rotary rotates pairs of the first 2 R dims of q and k_new, where R is the width of the tables, by the angle in the
// table row of the token's position. A new key's position is its cache row, padding included. A query's position
// follows the mask: bottom_right puts the last query at the last new key, top_left puts query 0 at the first key after
// the padding. Given positions (absolute) replace both. flash_attn_with_kvcache uses the same positions if there are as
// many queries as new keys and a causal mask or a window. Without either it rotates all queries by one angle, while
// attune rotates each by its own.
//
// A rotated number is rounded to the dtype of its tensor in the problem, even if this run's tensors are f64: attention
// sees what a cache can hold.
#include "reference/definition.h"

namespace attune::reference_detail {
namespace {

double rounded(DType t, double x) {
  switch (t) {
    case DType::f32: return float(x);
    case DType::f16: return F16(float(x));
    case DType::bf16: return Bf16(float(x));
    case DType::e4m3: return E4m3(float(x));
    default: return x;
  }
}

// Element d of a row at `position`, rotated.
double rotated_element(const Problem& p, const Args& a, const Tensor& t, Place at, int64_t h, int64_t d,
                       int64_t position) {
  const double x = load(t, at.batch, at.seq, h, d);
  const int64_t half = a[Role::rotary_cos].extent.dim;
  if (d >= 2 * half) return x;
  const bool beside = p.has(Option::rotary);
  const bool first = beside ? d % 2 == 0 : d < half;
  const int64_t pair = beside ? d / 2 : d % half, step = beside ? 1 : half;
  const double other = load(t, at.batch, at.seq, h, first ? d + step : d - step);
  const double cos = load(a[Role::rotary_cos], 0, position, 0, pair);
  const double sin = load(a[Role::rotary_sin], 0, position, 0, pair);
  return first ? x * cos - other * sin : other * sin + x * cos;
}

}  // namespace

Appended::Appended(const Problem& p, const Args& given) : args(given) {
  if (!p.has(Option::append)) return;
  const Tensor& q = given[Role::q];
  const auto [batch, seq, head, dim] = q.extent;
  if (p.rotates()) {
    rotated.assign(size_t(batch) * size_t(seq) * size_t(head) * size_t(dim), 0);
    args[Role::q] = {.data = rotated.data(), .dtype = DType::f64, .extent = q.extent,
                     .stride = {int64_t(seq) * head * dim, int64_t(head) * dim, dim}};
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    const Definition one(p, given, b);
    // Mask positions count from the first key after the padding; cache rows count from the first row.
    const int64_t base = p.mask.align == Align::absolute ? 0 : one.padding * p.mask.k_step;
    for (int64_t n = 0; n < one.added; ++n) {
      const int64_t j = one.len_k - one.added + n, position = base + one.k_position(j);
      const Place from{b, n}, to = one.key(j);
      for (int64_t h = 0; h < p.heads_kv; ++h) {
        for (int64_t d = 0; d < p.dim_qk; ++d) {
          const double x =
              p.rotates() ? rounded(p.dtype.kv, rotated_element(p, given, given[Role::k_new], from, h, d, position))
                          : load(given[Role::k_new], b, n, h, d);
          save(given[Role::k], to.batch, to.seq, h, d, x);
        }
        for (int64_t d = 0; d < p.dim_v; ++d)
          save(given[Role::v], to.batch, to.seq, h, d, load(given[Role::v_new], b, n, h, d));
      }
    }
    for (int64_t i = 0; p.rotates() && i < one.len_q; ++i)
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t d = 0; d < p.dim_qk; ++d) {
          const Place at = one.query(i);
          const double x = rotated_element(p, given, q, at, h, d, base + one.q_position(i));
          save(args[Role::q], at.batch, at.seq, h, d, rounded(p.dtype.q, x));
        }
  }
}

}  // namespace attune::reference_detail
