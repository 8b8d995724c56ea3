// SPDX-License-Identifier: Apache-2.0
#include "core/work.h"

#include <algorithm>

#include "core/formula/count.h"
#include "core/variant/adaptive.h"
#include "core/variant/dilated.h"
#include "core/variant/nsa.h"

namespace attune {
namespace {

// Integer sums that may wrap: only their differences are used, and those are below 2^63.

// The sum of floor(x / step) for x in [0, n); n / step is below 2^32.
uint64_t floor_sum(int64_t n, int64_t step) {
  const uint64_t q = uint64_t(n / step), r = uint64_t(n % step);
  return uint64_t(step) * (q ? q * (q - 1) / 2 : 0) + r * q;
}

// The sum of clamp(floor(x / step) + 1, 0, most) for x in [first, last).
uint64_t clamped_sum(int64_t first, int64_t last, int64_t step, int64_t most) {
  const int64_t full = step * most;  // from here on the term is `most`
  const int64_t lo = std::clamp<int64_t>(first, 0, full), hi = std::clamp<int64_t>(last, 0, full);
  const uint64_t rising = floor_sum(hi, step) - floor_sum(lo, step) + uint64_t(hi - lo);
  return rising + uint64_t(most) * uint64_t(std::max<int64_t>(last, full) - std::max<int64_t>(first, full));
}

double pairs_of(const Problem& p, const Args* a, int b, const Sequence& s, int sequences) {
  const Blocks blocks = p.mask.blocks;
  if (word(p.variant) == "dilated") return dilated_pairs(p, s.len_q);
  if (word(p.variant) == "adaptive")  // accurate to one block, because each row rounds its count
    return adaptive_of(p).density * 1e-6 * p.heads_q * visible_pairs(s.band, {0, s.len_q}, {0, s.len_k});
  if (has_formula(p) && !blocks.q) return formula_pairs(p, a, b, s, kMostPairs / sequences);
  if (!blocks.q || !a) return p.heads_q * visible_pairs(s.band, {0, s.len_q}, {0, s.len_k});
  double pairs = 0;
  for (int h = 0; h < p.heads_q; ++h) {
    const BlockList list{blocks, a->row<const int32_t>(Role::block_begin, b, 0, h),
                         a->row<const int32_t>(Role::block_column)};
    for (int64_t row = 0; row * blocks.q < s.len_q; ++row)
      for (int n = 0; n < list.count(int(row)); ++n) {
        const int64_t first = int64_t(list.key_block(int(row), n)) * blocks.k;
        pairs += visible_pairs(s.band, {int(row * blocks.q), clamp((row + 1) * blocks.q, 0, s.len_q)},
                               {clamp(first, 0, s.len_k), clamp(first + blocks.k, 0, s.len_k)});
      }
  }
  return pairs;
}

}  // namespace

double visible_pairs(const Band& band, Rows queries, Rows keys) {
  if (queries.first >= queries.last || keys.first >= keys.last) return 0;
  // Query i sees keys up to position q + right and none before q - left: the difference of two clamped counts.
  const int64_t first = band.q_position(queries.first) - band.k_position(keys.first);
  const int64_t last = first + (queries.last - queries.first), count = keys.last - keys.first;
  const uint64_t until = clamped_sum(first + band.right, last + band.right, band.k_step, count);
  const uint64_t before = clamped_sum(first - band.left - 1, last - band.left - 1, band.k_step, count);
  return double(std::max<int64_t>(0, int64_t(until - before)));
}

Cost cost(const Problem& p, const Args* a) {
  Cost c;
  double rows_q = 0, rows_k = 0;
  const int sequences = a ? p.batch : has_formula(p) ? formula_sequences(p) : 1;  // that are looked at
  for (int n = 0; n < sequences; ++n) {
    const int b = a ? n : int(int64_t(n) * p.batch / sequences);
    Mask mask = p.mask;
    if (mask.align == Align::absolute) mask.align = Align::bottom_right;
    const bool own = is_nsa(word(p.variant)) && word(p.variant) != "selected";  // k does not hold the sequence's keys
    const Sequence s = a && !own ? sequence(p, *a, b)
                         : Sequence{.len_q = p.len_q, .len_k = p.len_k, .band = band_of(mask, p.len_q, p.len_k, 0, 0)};
    const double times = double(p.batch) / sequences;
    c.pairs += times * (is_nsa(word(p.variant)) ? nsa_pairs(p, a, b) : pairs_of(p, a, b, s, sequences));
    rows_q += times * s.len_q, rows_k += times * s.len_k;
  }
  const bool backward = p.pass == Pass::backward;
  const double q = rows_q * p.heads_q, kv = rows_k * p.heads_kv;
  const double grad = backward ? size_of(p.dtype.grad) : 0, dims = double(p.dim_qk) + p.dim_v;
  c.flops = 2 * c.pairs * (backward ? 3.0 * p.dim_qk + 2.0 * p.dim_v : dims);
  if (word(p.variant) == "select") c.flops = 2 * c.pairs * p.dim_qk;  // scores only
  c.bytes =
      q * (p.dim_qk * size_of(p.dtype.q) + p.dim_v * size_of(p.dtype.out) + 4.0) + kv * dims * size_of(p.dtype.kv);
  if (backward) c.bytes += q * (p.dim_qk * grad + p.dim_v * size_of(p.dtype.out)) + kv * dims * grad;
  return c;
}

}  // namespace attune
