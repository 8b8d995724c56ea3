// SPDX-License-Identifier: Apache-2.0
#include "tool/check/spot.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "core/formula/of_problem.h"
#include "core/variant/nsa.h"
#include "core/score.h"
#include "machine/host.h"
#include "reference/formula.h"
#include "tool/check/spot_row.h"
#include "verify/cases/pairs.h"

namespace attune {
namespace {

struct Spot {
  const Problem& p;
  const Args& a;
  int b, h;  // query head
  Sequence s;
  Dropout dropout;
  Pairs pairs;
  Formula formula;

  Spot(const Problem& problem, const Args& args, int batch, int head)
      : p(problem), a(args), b(batch), h(head), s(sequence(problem, args, batch)), dropout(dropout_of(problem, args)),
        pairs(problem, args, batch, head), formula(formula_of(problem)) {}

  int kv_head() const { return h / (p.heads_q / p.heads_kv); }
  Row query(Role r, int i) const { return read(r, s.q_batch, s.q_first + i, h); }
  Row key(Role r, int j) const {
    const int64_t at = s.k_first + j;
    if (p.keys != KeySource::paged) return read(r, s.k_batch, at, kv_head());
    return read(r, a.row<const int32_t>(Role::page_table, b)[at / p.page], at % p.page, kv_head());
  }
  Row read(Role r, int64_t batch, int64_t seq, int64_t head) const { return read_row(a[r], batch, seq, head); }
  // A node of the formula for a pair of this logit, with its slope by the logit.
  reference_detail::Dual formula_at(int node, double logit, int i, int j) const {
    const reference_detail::FormulaPair pair{logit,   b,      h, kv_head(), s.band.q_position(i), s.band.k_position(j),
                                             s.len_q, s.len_k};
    return reference_detail::FormulaWalk{formula, a, pair, -1}.walk(node);
  }
  // Multiplicity of a pair; 0 if it is not visible.
  int times(int i, int j) const {
    if (!s.band.visible(i, j) || (formula.mask >= 0 && formula_at(formula.mask, 0, i, j).value == 0)) return 0;
    return pairs.times(i, j);
  }
  // Natural logit of a pair. `slope` is its derivative with respect to the scaled dot product.
  double logit(double product, int i, int j, double& slope) const {
    double x = product * double(scale_of(p, a));
    slope = 1;
    if (p.has(Option::softcap)) {
      const double t = std::tanh(x / double(a.softcap));
      x = double(a.softcap) * t, slope = 1 - t * t;
    }
    if (p.has(Option::bias)) x += double(bias_at(a[Role::bias], b, i, h, j));
    x += pairs.score(i, j);
    if (p.has(Option::alibi))
      x -= double(*a.row<const float>(Role::slopes, 0, 0, h)) * std::abs(double(s.band.ahead(i, j)));
    if (formula.score < 0) return x;
    const reference_detail::Dual scored = formula_at(formula.score, x, i, j);
    return slope = slope == 0 ? 0 : slope * scored.slope, scored.value;
  }
  double keep(int i, int j) const {
    return dropout.below ? double(dropout.factor(batch_head(p, b, h), s.band.q_position(i), s.band.k_position(j)))
                         : 1.0;
  }
  // Whether a pair counts: it is visible, and a formula's score of it is not -inf.
  bool counts(int i, int j) const {
    double slope = 1;
    if (!times(i, j)) return false;
    return formula.score < 0 || logit(dot(query(Role::q, i), key(Role::k, j)), i, j, slope) > -INFINITY;
  }
  bool sees(int i) const {
    for (int j = 0; j < s.len_k; ++j)
      if (counts(i, j)) return true;
    return false;
  }
  double lse(int i) const { return double(*a.row<const float>(Role::lse, s.q_batch, s.q_first + i, h)); }

  double out_row(int i) const {
    const Row q = query(Role::q, i);
    Row logits(size_t(s.len_k), -INFINITY), steep(size_t(s.len_k), 1);
    double top = p.has(Option::sink) ? double(*a.row<const float>(Role::sinks, 0, 0, h)) : -INFINITY, steepest = 1;
    const double sink = top;
    for (int j = 0; j < s.len_k; ++j)
      if (times(i, j)) {
        double slope = 1;
        top = std::max(top, logits[size_t(j)] = logit(dot(q, key(Role::k, j)), i, j, slope));
        // A score that multiplies a logit multiplies its rounding error.
        if (formula.score >= 0 && logits[size_t(j)] > -INFINITY) steep[size_t(j)] = std::max(1., std::abs(slope));
        steepest = std::max(steepest, steep[size_t(j)]);
      }
    double total = sink > -INFINITY ? std::exp(sink - top) : 0;
    for (int j = 0; j < s.len_k; ++j)
      if (const double x = logits[size_t(j)]; x > -INFINITY) total += times(i, j) * std::exp(x - top);
    Sum sum(p.dim_v);
    for (int j = 0; j < s.len_k; ++j)
      if (const double x = logits[size_t(j)]; x > -INFINITY) {
        const double weight = pairs.factor() * times(i, j) * std::exp(x - top) / total * keep(i, j);
        sum.add(weight, weight * steep[size_t(j)], key(Role::v, j));
      }
    const double worst = sum.judge(query(Role::out, i), rounding_of(p.dtype.kv), rounding_of(p.dtype.out));
    if (!a.given(Role::lse)) return worst;
    const double expected = total > 0 ? top + std::log(total) : -INFINITY;
    const double amplified = kArithmetic * (steepest - 1) * (4 + std::abs(expected));
    return worse(worst, judge_lse(lse(i), expected, rounding_of(p.dtype.kv) + amplified));
  }

  // Weight and gradient of a pair, from the given lse and out. `count` is its multiplicity.
  struct Pair { double weight, gradient, noise; };
  Pair pair(int i, int j, int count, const Row& q, const Row& k, const Row& v, const Row& d_out,
            const Row& out) const {
    double slope = 1, delta = 0, rounded = 0;
    const double x = logit(dot(q, k), i, j, slope);
    if (x == -INFINITY) return {0, 0, 0};  // hidden by a score
    const double weight = pairs.factor() * count * std::exp(x - lse(i)), kept = keep(i, j), dp = kept * dot(d_out, v);
    for (size_t d = 0; d < out.size(); ++d) delta += out[d] * d_out[d], rounded += std::pow(out[d] * d_out[d], 2);
    delta /= pairs.factor(), rounded /= pairs.factor() * pairs.factor();  // undo the factor on the softmax
    // The last noise term allows for kernels that compute delta from their own out, which rounds differently.
    return {weight * kept, weight * (dp - delta) * slope,
            weight * (std::abs(dp) + std::abs(delta) + std::sqrt(rounded)) * slope};
  }

  double dq_row(int i) const {
    const Row q = query(Role::q, i), d_out = query(Role::d_out, i), out = query(Role::out, i);
    const double scale = double(scale_of(p, a));
    Sum sum(p.dim_qk);
    Row coherent(size_t(p.dim_qk));  // an error in delta shifts all gradients of the row together
    for (int j = 0; j < s.len_k; ++j)
      if (const int count = times(i, j)) {
        const Row k = key(Role::k, j);
        const Pair x = pair(i, j, count, q, k, key(Role::v, j), d_out, out);
        sum.add(scale * x.gradient, scale * x.noise, k);
        for (size_t d = 0; d < k.size(); ++d) coherent[d] += scale * x.weight * k[d];
      }
    double rounded = 0;
    for (size_t d = 0; d < out.size(); ++d) rounded += std::pow(out[d] * d_out[d] / pairs.factor(), 2);
    for (size_t d = 0; d < coherent.size(); ++d) sum.square[d] += coherent[d] * coherent[d] * rounded;
    return sum.judge(query(Role::dq, i), rounding_of(p.dtype.kv), rounding_of(p.dtype.grad));
  }
};

// dk and dv of a key, summed over the query heads of its GQA group.
double key_row(const Problem& p, const Args& a, int b, int kv_head, int j) {
  const int group = p.heads_q / p.heads_kv;
  Sum dk(p.dim_qk), dv(p.dim_v);
  const Spot first(p, a, b, kv_head * group);
  const Row k = first.key(Role::k, j), v = first.key(Role::v, j);
  const double scale = double(scale_of(p, a));
  for (int g = 0; g < group; ++g) {
    const Spot spot(p, a, b, kv_head * group + g);
    for (int i = 0; i < spot.s.len_q; ++i) {
      const int count = spot.times(i, j);
      if (!count) continue;
      const Row q = spot.query(Role::q, i), d_out = spot.query(Role::d_out, i);
      const Spot::Pair x = spot.pair(i, j, count, q, k, v, d_out, spot.query(Role::out, i));
      dk.add(scale * x.gradient, scale * x.noise, q);
      dv.add(x.weight, x.weight, d_out);
    }
  }
  const double rounding = rounding_of(p.dtype.kv), rounding_out = rounding_of(p.dtype.grad);
  return worse(dk.judge(first.key(Role::dk, j), rounding, rounding_out),
               dv.judge(first.key(Role::dv, j), rounding, rounding_out));
}

bool is_seen(const Problem& p, const Args& a, int b, int kv_head, int j) {
  const int group = p.heads_q / p.heads_kv;
  for (int g = 0; g < group; ++g) {
    const Spot spot(p, a, b, kv_head * group + g);
    for (int i = 0; i < spot.s.len_q; ++i)
      if (spot.counts(i, j)) return true;
  }
  return false;
}

// Gradients of the arrays of a score are sums over all pairs.
Status can_draw_formula(const Problem& p) {
  const Formula f = formula_of(p);
  if (p.pass == Pass::backward && std::any_of(f.array, f.array + f.arrays, [](const auto& x) { return x.in_score; }))
    return Status::unsupported("rows cannot be drawn from gradients of the arrays of a score: use attune parity");
  return Status::good();
}

struct Drawn {
  int b, h, row;
  bool of_key;
  const char* what;
  double error = 0;
};

// Samples the first row, the last row, and random others.
std::vector<Drawn> draw_rows(const Problem& p, const Args& a, uint64_t seed, int rows, bool keys) {
  std::vector<Drawn> all;
  Random random{seed};
  const auto draw = [&](int n, int bound) { return n == 0 ? 0 : n == 1 ? bound - 1 : random.below(bound); };
  for (int n = 0; n < rows; ++n) {
    const int b = draw(n, p.batch), h = draw(n, p.heads_q);
    const Sequence s = sequence(p, a, b);
    if (s.len_q < 1) continue;
    all.push_back({b, h, draw(n, s.len_q), false, p.pass == Pass::forward ? "out" : "dq"});
    if (!keys || n >= rows / 2 || s.len_k < 1) continue;
    const int kv_head = draw(n, p.heads_kv);
    all.push_back({b, kv_head, draw(n, s.len_k), true, "dk or dv"});
  }
  return all;
}

// Calls f(0) ... f(count - 1) on as many threads as this process may use.
template <class F>
void on_all_cores(size_t count, const F& f) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t n = next++; n < count; n = next++) f(n);
  };
  std::vector<std::thread> others;
  for (size_t n = 1; n < std::min(count, size_t(this_cpu().units)); ++n) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}

}  // namespace

Status can_draw(const Problem& p) {
  for (const Option o : {Option::accumulate, Option::append, Option::rotary, Option::rotary_half, Option::descale})
    if (p.has(o)) return Status::unsupported("rows cannot be drawn with the option ", name(o), ": use attune parity");
  const std::string_view variant = word(p.variant);
  if (variant.empty()) return Status::good();
  if (variant == "adaptive" && p.pass == Pass::backward)
    return Status::unsupported(
        "rows cannot be drawn from gradients that pass through scores of blocks: use attune parity");
  if (variant == "adaptive") return Status::good();
  if (variant == "nsa") return can_draw_nsa(p);
  if (variant == "formula") return can_draw_formula(p);
  if (variant != "dilated") return Status::unsupported("rows cannot be drawn from ", variant, ": use attune parity");
  if (is_one_softmax(p)) return Status::good();
  return Status::unsupported("rows cannot be drawn from branches with a softmax each: use attune parity");
}

Checked spot_check(const Problem& p, const Args& a, uint64_t seed, int rows) {
  if (const Status s = can_draw(p); !s.ok()) return {CheckVerdict::unchecked, 0, 0, s.message, ""};
  const bool nsa = word(p.variant) == "nsa";
  if (nsa && !has_chosen_blocks(p, a))
    return {CheckVerdict::fail, 1e9, 0, "the list of selected blocks is missing", ""};
  const bool keys = p.pass == Pass::backward;
  std::vector<Drawn> all = draw_rows(p, a, seed, rows, keys);
  // Rows are independent and each is a walk over the keys, so the check runs on all cores.
  const auto judge = [&](Drawn& d) {
    if (nsa && d.of_key) d.error = nsa_key_row(p, a, d.b, d.h, d.row, d.what);
    else if (nsa && p.pass == Pass::forward) d.error = nsa_out_row(p, a, d.b, d.h, d.row, d.what);
    else if (nsa) d.error = nsa_dq_row(p, a, d.b, d.h, d.row);
    else if (d.of_key) d.error = key_row(p, a, d.b, d.h, d.row);
    else if (p.pass == Pass::forward) d.error = Spot(p, a, d.b, d.h).out_row(d.row);
    else d.error = Spot(p, a, d.b, d.h).dq_row(d.row);
  };
  on_all_cores(all.size(), [&](size_t n) { judge(all[n]); });

  Checked c{.verdict = CheckVerdict::pass};
  for (const Drawn& d : all) {
    ++c.rows;
    if (d.error <= c.error) continue;  // false for NaN, which then counts as the largest
    c.error = std::isfinite(d.error) ? d.error : 1e9;
    if (!(d.error <= 1))
      c.verdict = CheckVerdict::fail, c.message = join(d.what, " row ", d.row, " of batch ", d.b, ", head ", d.h,
                                                       " is off by ", c.error, " times what rounding allows");
  }
  // Zeros that are as expected compare nothing where no pair is visible.
  const auto compares = [&](const Drawn& d) {
    return nsa || (d.of_key ? is_seen(p, a, d.b, d.h, d.row) : Spot(p, a, d.b, d.h).sees(d.row));
  };
  if (c.verdict == CheckVerdict::pass && c.error == 0 && std::none_of(all.begin(), all.end(), compares))
    c.verdict = CheckVerdict::empty, c.message = "no query that was looked at sees a key";
  return c;
}

std::vector<ResultRow> rows_read(const Problem& p, const Args& a, uint64_t seed, int rows) {
  if (!can_draw(p).ok() || !word(p.variant).empty() || p.keys == KeySource::paged) return {};
  const bool backward = p.pass == Pass::backward;
  std::vector<ResultRow> all;
  for (const Drawn& d : draw_rows(p, a, seed, rows, backward)) {
    const Sequence s = sequence(p, a, d.b);
    const auto add = [&](Role r) {
      if (!a.given(r)) return;
      if (d.of_key) all.push_back({r, s.k_batch, s.k_first + d.row, d.h});
      else all.push_back({r, s.q_batch, s.q_first + d.row, d.h});
    };
    if (d.of_key) add(Role::dk), add(Role::dv);
    else if (backward) add(Role::dq);
    else add(Role::out), add(Role::lse);
  }
  return all;
}

}  // namespace attune
