// SPDX-License-Identifier: Apache-2.0
#include "core/formula/count.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/formula/block_bounds.h"
#include "core/work.h"

namespace attune {
namespace {

constexpr int kSmallest = 64, kMostBoxes = 1 << 8;  // least side of a box; boxes along a side
constexpr int kSamples = 6;                         // along a side of a box that is not decided

struct Count {
  const Problem& p;
  const Sequence& s;
  int b;
  bool known;  // the arrays can be read
  Formula formula;
  std::vector<std::byte> memory{};
  FormulaBounds bounds{};

  Count(const Problem& problem, const Args* a, int batch, const Sequence& seq)
      : p(problem), s(seq), b(batch), known(a != nullptr), formula(formula_of(problem)) {
    for (int n = 0; known && n < formula.arrays; ++n)
      known = a->given(variant_tensor(n)) && (*a)[variant_tensor(n)].device == DeviceKind::cpu;
    if (!known) return;
    Workspace counted;
    place_bounds(p, formula, counted, bounds);
    memory.resize(counted.used + 256);
    Workspace ws{memory.data()};
    place_bounds(p, formula, ws, bounds);
    build_bounds(formula, *a, bounds);
  }

  BoxIs box(Rows queries, Rows keys, Rows heads) const {
    const PairBox x{.q_first = s.band.q_position(queries.first), .q_last = s.band.q_position(queries.last - 1),
                    .k_first = s.band.k_position(keys.first), .k_last = s.band.k_position(keys.last - 1),
                    .h_first = heads.first, .h_last = heads.last - 1, .b = b, .group = p.heads_q / p.heads_kv,
                    .len_q = s.len_q, .len_k = s.len_k};
    if (known) return bounds.decide(formula, x);
    NumberRange value[kMostNodes];
    return decide(formula, x, [](int, const NumberRange*) { return formula::anything(); }, value);
  }
  double pairs(Rows queries, Rows keys, int smallest) const {
    const double all = visible_pairs(s.band, queries, keys);
    if (all == 0) return 0;
    const BoxIs is = box(queries, keys, {0, p.heads_q});
    if (is != BoxIs::mixed) return is == BoxIs::open ? all * p.heads_q : 0;
    const int q = queries.first + (queries.last - queries.first + 1) / 2;
    const int k = keys.first + (keys.last - keys.first + 1) / 2;
    if (queries.last - queries.first <= smallest && keys.last - keys.first <= smallest)
      return all * p.heads_q * visible_part(queries, keys);
    double sum = 0;
    for (const Rows half_q : {Rows{queries.first, q}, Rows{q, queries.last}})
      for (const Rows half_k : {Rows{keys.first, k}, Rows{k, keys.last}})
        if (half_q.first < half_q.last && half_k.first < half_k.last) sum += pairs(half_q, half_k, smallest);
    return sum;
  }
  // By single pairs, for which bounds are values.
  double visible_part(Rows queries, Rows keys) const {
    int seen = 0, shown = 0;
    for (int i = 0; i < kSamples; ++i)
      for (int j = 0; j < kSamples; ++j) {
        const int q = queries.first + int(int64_t(queries.last - queries.first) * (2 * i + 1) / (2 * kSamples));
        const int k = keys.first + int(int64_t(keys.last - keys.first) * (2 * j + 1) / (2 * kSamples));
        if (!s.band.visible(q, k)) continue;
        const int h = (i + j) % p.heads_q;
        ++seen, shown += box({q, q + 1}, {k, k + 1}, {h, h + 1}) != BoxIs::hidden;
      }
    return seen ? double(shown) / seen : 1;
  }
};

}  // namespace

double formula_pairs(const Problem& p, const Args* a, int b, const Sequence& s) {
  if (s.len_q <= 0 || s.len_k <= 0) return 0;
  const auto count = std::make_unique<Count>(p, a, b, s);
  const int smallest = std::max(kSmallest, int(ceil_div(std::max(s.len_q, s.len_k), kMostBoxes)));
  return count->pairs({0, s.len_q}, {0, s.len_k}, smallest);
}

}  // namespace attune
