#include "core/cost.h"

#include <algorithm>

namespace attune {
namespace {

// The sum of floor(x / step) for x in [0, n).
double floor_sum(int64_t n, int64_t step) {
  if (n <= 0) return 0;
  const double q = double(n / step), r = double(n % step);
  return double(step) * q * (q - 1) / 2 + r * q;
}

// The sum of clamp(floor(x / step) + 1, 0, most) for x in [first, last).
double clamped_sum(int64_t first, int64_t last, int64_t step, int64_t most) {
  const int64_t full = step * most;  // from here on the term is `most`
  const int64_t lo = std::clamp<int64_t>(first, 0, full), hi = std::clamp<int64_t>(last, 0, full);
  const double rising = floor_sum(hi, step) - floor_sum(lo, step) + double(hi - lo);
  return rising + double(most) * double(std::max<int64_t>(last, full) - std::max<int64_t>(first, full));
}

double pairs_of(const Problem& p, const Args* a, int b, const Sequence& s) {
  const Blocks blocks = p.mask.blocks;
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
  const double until = clamped_sum(first + band.right, last + band.right, band.k_step, count);
  const double before = clamped_sum(first - band.left - 1, last - band.left - 1, band.k_step, count);
  return std::max(0.0, until - before);
}

Cost cost(const Problem& p, const Args* a) {
  Cost c;
  double rows_q = 0, rows_k = 0;
  for (int b = 0; b < (a ? p.batch : 1); ++b) {
    Mask mask = p.mask;
    if (mask.align == Align::absolute) mask.align = Align::bottom_right;
    const Sequence s = a ? sequence(p, *a, b)
                         : Sequence{.len_q = p.len_q, .len_k = p.len_k, .band = band_of(mask, p.len_q, p.len_k, 0, 0)};
    const double times = a ? 1 : p.batch;
    c.pairs += times * pairs_of(p, a, b, s);
    rows_q += times * s.len_q, rows_k += times * s.len_k;
  }
  const bool backward = p.pass == Pass::backward;
  const double q = rows_q * p.heads_q, kv = rows_k * p.heads_kv;
  const double grad = backward ? size_of(p.dtype.grad) : 0, dims = double(p.dim_qk) + p.dim_v;
  c.flops = 2 * c.pairs * (backward ? 3.0 * p.dim_qk + 2.0 * p.dim_v : dims);
  c.bytes = q * (p.dim_qk * size_of(p.dtype.q) + p.dim_v * size_of(p.dtype.out) + 4.0) + kv * dims * size_of(p.dtype.kv);
  if (backward) c.bytes += q * (p.dim_qk * grad + p.dim_v * size_of(p.dtype.out)) + kv * dims * grad;
  return c;
}

}  // namespace attune
