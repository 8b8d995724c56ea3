// What is allowed follows from how an exact kernel rounds: weights (and their gradients) are kept in the dtype of the
// values, independently of each other, so their errors add in squares; f32 arithmetic and the output's rounding come on
// top. The L2 norm of a row is compared, which no lucky element can satisfy.
#include "tool/measure/spot.h"

#include <algorithm>
#include <cmath>

#include "core/score.h"
#include "verify/world.h"

namespace attune {
namespace {

using Row = std::vector<double>;
constexpr double kArithmetic = 64 * 0x1p-24;  // of f32, relative to the sum of magnitudes
constexpr double kRoundings = 4;              // this many standard deviations, generously

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

// A sum of weighted rows, and what its rounding may amount to.
struct Sum {
  Row value, square, magnitude;
  explicit Sum(int dim) : value(size_t(dim)), square(size_t(dim)), magnitude(size_t(dim)) {}
  // `noise`: the size that the weight's rounding is relative to.
  void add(double weight, double noise, const Row& x) {
    for (size_t d = 0; d < x.size(); ++d) {
      value[d] += weight * x[d];
      square[d] += noise * noise * x[d] * x[d];
      magnitude[d] += std::abs(noise * x[d]);
    }
  }
  // The error of a row as a share of what is allowed; NaN where the row has one.
  double judge(const Row& got, double rounding, double rounding_out) const {
    double error = 0, noise = 0, size = 0, sum = 0;
    for (size_t d = 0; d < got.size(); ++d) {
      error += (got[d] - value[d]) * (got[d] - value[d]);
      noise += square[d], size += value[d] * value[d], sum += magnitude[d] * magnitude[d];
    }
    const double allowed = kRoundings * rounding * std::sqrt(noise) + 2 * rounding_out * std::sqrt(size) +
                           kArithmetic * std::sqrt(sum) + 1e-30;
    return std::sqrt(error) / allowed;
  }
};

struct Spot {
  const Problem& p;
  const Args& a;
  int b, h;  // query head
  Sequence s;
  Dropout dropout;

  Spot(const Problem& problem, const Args& args, int batch, int head)
      : p(problem), a(args), b(batch), h(head), s(sequence(problem, args, batch)), dropout(dropout_of(problem, args)) {}

  int kv_head() const { return h / (p.heads_q / p.heads_kv); }
  Row query(Role r, int i) const { return read(r, s.q_batch, s.q_first + i, h); }
  Row key(Role r, int j) const {
    const int64_t at = s.k_first + j;
    if (p.keys != KeySource::paged) return read(r, s.k_batch, at, kv_head());
    return read(r, a.row<const int32_t>(Role::page_table, b)[at / p.page], at % p.page, kv_head());
  }
  Row read(Role r, int64_t batch, int64_t seq, int64_t head) const {
    Row x(size_t(a[r].extent.dim));
    for (size_t d = 0; d < x.size(); ++d) x[d] = load(a[r], batch, seq, head, int64_t(d));
    return x;
  }
  bool visible(int i, int j) const {
    if (!s.band.visible(i, j)) return false;
    const Blocks blocks = p.mask.blocks;
    if (!blocks.q) return true;
    const BlockList list{blocks, a.row<const int32_t>(Role::block_begin, b, 0, h),
                         a.row<const int32_t>(Role::block_column)};
    for (int n = 0; n < list.count(i / blocks.q); ++n)
      if (list.key_block(i / blocks.q, n) == j / blocks.k) return true;
    return false;
  }
  // Natural logit of a pair; `slope` is its derivative by the scaled dot product.
  double logit(double product, int i, int j, double& slope) const {
    double x = product * double(scale_of(p, a));
    slope = 1;
    if (p.has(Option::softcap)) {
      const double t = std::tanh(x / double(a.softcap));
      x = double(a.softcap) * t, slope = 1 - t * t;
    }
    if (p.has(Option::bias)) x += double(bias_at(a[Role::bias], b, i, h, j));
    if (p.has(Option::alibi))
      x -= double(*a.row<const float>(Role::slopes, 0, 0, h)) * std::abs(double(s.band.ahead(i, j)));
    return x;
  }
  double keep(int i, int j) const {
    return dropout.below ? double(dropout.factor(batch_head(p, b, h), s.band.q_position(i), s.band.k_position(j)))
                         : 1.0;
  }
  double lse(int i) const { return double(*a.row<const float>(Role::lse, s.q_batch, s.q_first + i, h)); }

  double out_row(int i) const {
    const Row q = query(Role::q, i);
    Row logits(size_t(s.len_k), -INFINITY);
    double top = p.has(Option::sink) ? double(*a.row<const float>(Role::sinks, 0, 0, h)) : -INFINITY, slope = 1;
    const double sink = top;
    for (int j = 0; j < s.len_k; ++j)
      if (visible(i, j)) top = std::max(top, logits[size_t(j)] = logit(dot(q, key(Role::k, j)), i, j, slope));
    double total = sink > -INFINITY ? std::exp(sink - top) : 0;
    for (const double x : logits) total += x > -INFINITY ? std::exp(x - top) : 0;
    Sum sum(p.dim_v);
    for (int j = 0; j < s.len_k; ++j)
      if (const double x = logits[size_t(j)]; x > -INFINITY) {
        const double weight = std::exp(x - top) / total * keep(i, j);
        sum.add(weight, weight, key(Role::v, j));
      }
    const double worst = sum.judge(query(Role::out, i), rounding_of(p.dtype.kv), rounding_of(p.dtype.out));
    if (!a.given(Role::lse)) return worst;
    const double expected = total > 0 ? top + std::log(total) : -INFINITY;
    if (lse(i) == expected) return worst;
    return std::max(worst,
                    std::abs(lse(i) - expected) / (kArithmetic * (4 + std::abs(expected)) + rounding_of(p.dtype.kv)));
  }

  // A pair's weight and gradient, from the lse and out that were given.
  struct Pair { double weight, gradient, noise; };
  Pair pair(int i, int j, const Row& q, const Row& k, const Row& v, const Row& d_out, const Row& out) const {
    double slope = 1, delta = 0, rounded = 0;
    const double weight = std::exp(logit(dot(q, k), i, j, slope) - lse(i)), kept = keep(i, j),
                 dp = kept * dot(d_out, v);
    for (size_t d = 0; d < out.size(); ++d) delta += out[d] * d_out[d], rounded += std::pow(out[d] * d_out[d], 2);
    // The last term: who computes delta from an out of his own rounds it differently.
    return {weight * kept, weight * (dp - delta) * slope,
            weight * (std::abs(dp) + std::abs(delta) + std::sqrt(rounded)) * slope};
  }

  double dq_row(int i) const {
    const Row q = query(Role::q, i), d_out = query(Role::d_out, i), out = query(Role::out, i);
    const double scale = double(scale_of(p, a));
    Sum sum(p.dim_qk);
    Row coherent(size_t(p.dim_qk));  // an error of delta moves all weights of the row together
    for (int j = 0; j < s.len_k; ++j)
      if (visible(i, j)) {
        const Row k = key(Role::k, j);
        const Pair x = pair(i, j, q, k, key(Role::v, j), d_out, out);
        sum.add(scale * x.gradient, scale * x.noise, k);
        for (size_t d = 0; d < k.size(); ++d) coherent[d] += scale * x.weight * k[d];
      }
    double rounded = 0;
    for (size_t d = 0; d < out.size(); ++d) rounded += std::pow(out[d] * d_out[d], 2);
    for (size_t d = 0; d < coherent.size(); ++d) sum.square[d] += coherent[d] * coherent[d] * rounded;
    return sum.judge(query(Role::dq, i), rounding_of(p.dtype.kv), rounding_of(p.dtype.grad));
  }
};

// dk and dv of a key, summed over the query heads that share it.
double key_row(const Problem& p, const Args& a, int b, int kv_head, int j) {
  const int group = p.heads_q / p.heads_kv;
  Sum dk(p.dim_qk), dv(p.dim_v);
  const Spot first(p, a, b, kv_head * group);
  const Row k = first.key(Role::k, j), v = first.key(Role::v, j);
  const double scale = double(scale_of(p, a));
  for (int g = 0; g < group; ++g) {
    const Spot spot(p, a, b, kv_head * group + g);
    for (int i = 0; i < spot.s.len_q; ++i) {
      if (!spot.visible(i, j)) continue;
      const Row q = spot.query(Role::q, i), d_out = spot.query(Role::d_out, i);
      const Spot::Pair x = spot.pair(i, j, q, k, v, d_out, spot.query(Role::out, i));
      dk.add(scale * x.gradient, scale * x.noise, q);
      dv.add(x.weight, x.weight, d_out);
    }
  }
  const double rounding = rounding_of(p.dtype.kv), rounding_out = rounding_of(p.dtype.grad);
  return std::max(dk.judge(first.key(Role::dk, j), rounding, rounding_out),
                  dv.judge(first.key(Role::dv, j), rounding, rounding_out));
}

}  // namespace

Checked spot_check(const Problem& p, const Args& a, uint64_t seed, int rows) {
  for (const Option o : {Option::accumulate, Option::append, Option::rotary, Option::rotary_half, Option::descale,
                         Option::block_bias})
    if (p.has(o))
      return {"UNCHECKED", 0, 0, join("rows cannot be drawn with the option ", name(o), ": use attune parity")};
  if (!word(p.variant).empty()) return {"UNCHECKED", 0, 0, "rows cannot be drawn from a variant: use attune parity"};

  Checked c{.verdict = "PASS"};
  Random random{seed};
  const auto note = [&](double error, const char* what, int b, int h, int row) {
    ++c.rows;
    if (error <= c.error) return;  // false for a NaN, which is then the largest
    c.error = std::isfinite(error) ? error : 1e9;
    if (!(error <= 1))
      c.verdict = "FAIL", c.message = join(what, " row ", row, " of batch ", b, ", head ", h, " is off by ", c.error,
                                           " times what rounding allows");
  };
  const auto draw = [&](int n, int bound) { return n == 0 ? 0 : n == 1 ? bound - 1 : random.below(bound); };
  for (int n = 0; n < rows; ++n) {
    const int b = draw(n, p.batch), h = draw(n, p.heads_q);
    const Spot spot(p, a, b, h);
    if (spot.s.len_q < 1) continue;
    const int i = draw(n, spot.s.len_q);
    if (p.pass == Pass::forward) {
      note(spot.out_row(i), "out", b, h, i);
      continue;
    }
    note(spot.dq_row(i), "dq", b, h, i);
    if (n >= rows / 2 || spot.s.len_k < 1) continue;
    const int kv_head = draw(n, p.heads_kv), j = draw(n, spot.s.len_k);
    note(key_row(p, a, b, kv_head, j), "dk or dv", b, kv_head, j);
  }
  return c;
}

}  // namespace attune
