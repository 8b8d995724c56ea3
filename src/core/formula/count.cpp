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

// SplitMix64: places that do not repeat with any period of a mask.
uint64_t scattered(uint64_t n) {
  uint64_t x = (n + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9, x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Count {
  const Problem& p;
  const Sequence& s;
  int b;
  double most;  // pairs that are counted one by one
  bool known;   // the arrays can be read
  Formula formula;
  std::vector<std::byte> memory{};
  FormulaBounds bounds{};

  Count(const Problem& problem, const Args* a, int batch, const Sequence& seq, int64_t most_pairs)
      : p(problem), s(seq), b(batch), most(double(most_pairs)), known(a != nullptr), formula(formula_of(problem)) {
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
  struct Box {
    Rows queries, keys;
    double all;  // pairs of one head in the band
    int64_t places() const { return int64_t(queries.last - queries.first) * (keys.last - keys.first); }
  };

  // The pairs of decided boxes; the others go into `mixed`.
  double decided_pairs(Rows queries, Rows keys, int smallest, std::vector<Box>& mixed) const {
    const double all = visible_pairs(s.band, queries, keys);
    if (all == 0) return 0;
    const BoxIs is = box(queries, keys, {0, p.heads_q});
    if (is != BoxIs::mixed) return is == BoxIs::open ? all * p.heads_q : 0;
    const int q = queries.first + (queries.last - queries.first + 1) / 2;
    const int k = keys.first + (keys.last - keys.first + 1) / 2;
    if (queries.last - queries.first <= smallest && keys.last - keys.first <= smallest) {
      mixed.push_back({queries, keys, all});
      return 0;
    }
    double sum = 0;
    for (const Rows half_q : {Rows{queries.first, q}, Rows{q, queries.last}})
      for (const Rows half_k : {Rows{keys.first, k}, Rows{k, keys.last}})
        if (half_q.first < half_q.last && half_k.first < half_k.last)
          sum += decided_pairs(half_q, half_k, smallest, mixed);
    return sum;
  }
  bool shows(int q, int k, int h) const {  // the bounds of one pair are its values
    return box({q, q + 1}, {k, k + 1}, {h, h + 1}) != BoxIs::hidden;
  }
  int heads() const {  // that may differ
    const int last = std::max(formula.mask, formula.score);
    for (int n = 0; n <= last; ++n)
      if (formula.node[n].op == Op::h || formula.node[n].op == Op::g) return p.heads_q;
    return 1;
  }
  double every_pair(const Box& x) const {
    double shown = 0;
    for (int q = x.queries.first; q < x.queries.last; ++q)
      for (int k = x.keys.first; k < x.keys.last; ++k)
        for (int h = 0; s.band.visible(q, k) && h < heads(); ++h) shown += shows(q, k, h);
    return shown * p.heads_q / heads();
  }
  double some_pairs(const Box& x, int samples, uint64_t seed) const {
    int seen = 0, shown = 0;
    for (int n = 0; n < samples; ++n) {
      const uint64_t at = scattered(seed + uint64_t(n));
      const int q = x.queries.first + int((at & 0xfffff) % uint64_t(x.queries.last - x.queries.first));
      const int k = x.keys.first + int((at >> 20 & 0xfffff) % uint64_t(x.keys.last - x.keys.first));
      if (!s.band.visible(q, k)) continue;
      ++seen, shown += shows(q, k, int((at >> 40) % uint64_t(p.heads_q)));
    }
    return x.all * p.heads_q * (seen ? double(shown) / seen : 1);
  }
  double pairs() const {
    const int smallest = std::max(kSmallest, int(ceil_div(std::max(s.len_q, s.len_k), kMostBoxes)));
    std::vector<Box> mixed;
    double sum = decided_pairs({0, s.len_q}, {0, s.len_k}, smallest, mixed), places = 0;
    for (const Box& x : mixed) places += double(x.places()) * heads();
    uint64_t seed = 0;
    for (const Box& x : mixed) {
      const double samples = most * double(x.places()) * heads() / places;
      sum += places <= most ? every_pair(x) : some_pairs(x, std::max(int(samples), 1), seed);
      seed += uint64_t(samples) + 1;
    }
    return sum;
  }
};

}  // namespace

double formula_pairs(const Problem& p, const Args* a, int b, const Sequence& s, int64_t most) {
  if (s.len_q <= 0 || s.len_k <= 0) return 0;
  return std::make_unique<Count>(p, a, b, s, most)->pairs();
}

int formula_sequences(const Problem& p) {
  constexpr int kMostSequences = 64;
  const Formula f = formula_of(p);
  for (int n = 0; n < f.nodes; ++n)
    if (f.node[n].op == Op::b) return std::min(p.batch, kMostSequences);
  return 1;
}

}  // namespace attune
