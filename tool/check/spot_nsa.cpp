// SPDX-License-Identifier: Apache-2.0
// Sampled rows of native sparse attention, by its definition (docs/nsa.md) and in double. A forward's selection of
// blocks is taken from its output, once it is shown to be one that the scores allow: of two blocks whose scores are
// equal within rounding, either may be selected. A backward is checked against the branches that it was given.
#include <algorithm>

#include "tool/check/spot_row.h"
#include "verify/diagnose/nsa_branches.h"

namespace attune {
namespace {

// Probabilities of the compressed tokens visible to query i, summed over the heads of a GQA group.
Row group_probabilities(const NsaBranches& one, int i, const std::vector<int64_t>& seen) {
  const int group = one.p.heads_q / one.p.heads_kv;
  std::vector<Row> k;
  for (const int64_t c : seen) k.push_back(one.key(0, c, false));
  Row sum(seen.size());
  for (int h = one.kv_head * group; h < (one.kv_head + 1) * group; ++h) {
    const Row q = read_row(one.a[Role::q], one.b, i, h);
    Row x;
    double top = -INFINITY, total = 0;
    for (const Row& row : k) x.push_back(one.scale * dot(q, row)), top = std::max(top, x.back());
    for (const double y : x) total += std::exp(y - top);
    for (size_t n = 0; n < x.size(); ++n) sum[n] += std::exp(x[n] - top) / total;
  }
  return sum;
}

// True if the list of query i holds the blocks that are always selected, is full, and holds no block that scores less
// than one left out.
bool may_choose(const NsaBranches& one, int i) {
  const Nsa& nsa = one.nsa;
  const int64_t t = one.position(i), own = t / nsa.s;
  std::vector<int64_t> list;
  for (int n = 0; n < nsa.n; ++n)
    if (const int64_t m = one.blocks(i, n); m >= 0) {
      if (m > own || (!list.empty() && m <= list.back())) return false;
      list.push_back(m);
    }
  const auto has = [&](int64_t m) { return std::find(list.begin(), list.end(), m) != list.end(); };
  if (!has(0) || !has(own) || !has(std::max<int64_t>(0, own - 1))) return false;
  if (int64_t(list.size()) != std::min<int64_t>(nsa.n, own + 1)) return false;
  const std::vector<int64_t> seen = one.keys(0, i);
  const Row probability = group_probabilities(one, i, seen);
  double least = INFINITY, most = 0;  // lowest score of a selected block, highest score of any other
  for (int64_t m = 1; m + 1 < own; ++m) {
    double score = 0;
    for (const int64_t c : seen) {
      const int64_t from = std::max<int64_t>(c * nsa.d, m * nsa.s);
      const int64_t until = std::min<int64_t>(c * nsa.d + nsa.l, (m + 1) * nsa.s);
      if (from < until) score += probability[size_t(c)] * double(until - from) / nsa.l;
    }
    if (has(m)) least = std::min(least, score);
    else most = std::max(most, score);
  }
  return least >= most * (1 - 16 * std::max(rounding_of(one.p.dtype.kv), kArithmetic));
}

double length_of(const Row& x) { return std::sqrt(dot(x, x)); }

}  // namespace

Status can_draw_nsa(const Problem& p) {
  const Phi phi = nsa_of(p).phi;
  if (phi != Phi::mean && phi != Phi::none)
    return Status::unsupported("rows cannot be drawn from compressions that have weights: use attune parity");
  if (p.keys != KeySource::linear)
    return Status::unsupported("rows cannot be drawn from nsa with lengths: use attune parity");
  return Status::good();
}

bool has_chosen_blocks(const Problem& p, const Args& a) {
  const Branch only = nsa_of(p).only;
  return (only != Branch::all && only != Branch::selected) || a.given(variant_tensor(kNsaBlocks));
}

double nsa_out_row(const Problem& p, const Args& a, int b, int h, int i, const char*& what) {
  const NsaBranches one(p, a, b, h);
  if (one.wants(Branch::selected) && !may_choose(one, i)) {
    what = "selected blocks of";
    return INFINITY;
  }
  const Row q = read_row(a[Role::q], b, i, h);
  double gate[3], branch_roundings = 0, lse = -INFINITY;
  one.gates(i, gate);
  Sum sum(p.dim_v);
  for (int n = 0; n < 3; ++n) {
    if (!one.wants(Branch(n))) continue;
    const std::vector<int64_t> keys = one.keys(n, i);
    Row x;
    double top = -INFINITY, total = 0;
    for (const int64_t j : keys) x.push_back(one.scale * dot(q, one.key(n, j, false))), top = std::max(top, x.back());
    for (const double y : x) total += std::exp(y - top);
    Row branch(size_t(p.dim_v));
    for (size_t m = 0; m < keys.size(); ++m) {
      const double weight = gate[n] * std::exp(x[m] - top) / total;
      const Row v = one.key(n, keys[m], true);
      sum.add(weight, weight, v);
      for (size_t d = 0; d < v.size(); ++d) branch[d] += weight * v[d];
    }
    if (one.whole()) branch_roundings += rounding_of(p.dtype.out) * length_of(branch);
    else if (total > 0) lse = top + std::log(total);
  }
  const double error =
      sum.judge(read_row(a[Role::out], b, i, h), rounding_of(p.dtype.kv), rounding_of(p.dtype.out), branch_roundings);
  if (one.whole() || !a.given(Role::lse)) return error;
  return worse(error, judge_lse(load(a[Role::lse], b, i, h, 0), lse, rounding_of(p.dtype.kv)));
}

namespace {

// Inputs of a backward for query i in one branch: its gradient, and the delta to subtract.
struct Given {
  Row q, d_out;
  double lse, delta, rounded;  // rounded: squared scale of delta's rounding

  Given(const NsaBranches& one, int n, int i) : q(read_row(one.a[Role::q], one.b, i, one.h)) {
    double gate[3];
    one.gates(i, gate);
    d_out = read_row(one.a[Role::d_out], one.b, i, one.h);
    for (double& x : d_out) x *= gate[n];
    const int64_t head = one.whole() ? int64_t(n) * one.p.heads_q + one.h : one.h;
    const Row out = read_row(one.a[one.whole() ? variant_tensor(kNsaBranchOut) : Role::out], one.b, i, head);
    lse = load(one.a[one.whole() ? variant_tensor(kNsaBranchLse) : Role::lse], one.b, i, head, 0);
    delta = dot(d_out, out), rounded = 0;
    for (size_t d = 0; d < out.size(); ++d) rounded += std::pow(out[d] * d_out[d], 2);
  }
  struct Pair { double weight, gradient, noise; };
  Pair with(double scale, const Row& k, const Row& v) const {
    const double weight = std::exp(scale * dot(q, k) - lse), dp = dot(d_out, v);
    return {weight, weight * (dp - delta), weight * (std::abs(dp) + std::abs(delta) + std::sqrt(rounded))};
  }
};

}  // namespace

double nsa_dq_row(const Problem& p, const Args& a, int b, int h, int i) {
  const NsaBranches one(p, a, b, h);
  Sum sum(p.dim_qk);
  double branch_roundings = 0;
  for (int n = 0; n < 3; ++n) {
    if (!one.wants(Branch(n))) continue;
    const Given given(one, n, i);
    Row coherent(size_t(p.dim_qk)), branch(size_t(p.dim_qk));  // an error in delta shifts all gradients together
    for (const int64_t j : one.keys(n, i)) {
      const Row k = one.key(n, j, false);
      const Given::Pair x = given.with(one.scale, k, one.key(n, j, true));
      sum.add(one.scale * x.gradient, one.scale * x.noise, k);
      for (size_t d = 0; d < k.size(); ++d)
        coherent[d] += one.scale * x.weight * k[d], branch[d] += one.scale * x.gradient * k[d];
    }
    for (size_t d = 0; d < coherent.size(); ++d) sum.square[d] += coherent[d] * coherent[d] * given.rounded;
    branch_roundings += 2 * rounding_of(p.dtype.grad) * length_of(branch);
  }
  return sum.judge(read_row(a[Role::dq], b, i, h), rounding_of(p.dtype.kv), rounding_of(p.dtype.grad),
                   branch_roundings);
}

// Gradients of a token of k and v through the compressed tokens that contain it. All later queries see such a token, so
// in long sequences a token near the end is sampled.
double compressed_row(const Problem& p, const Args& a, int b, int kv_head, int drawn) {
  const int group = p.heads_q / p.heads_kv, len_q = a[Role::q].extent.seq, rows = a[Role::k].extent.seq;
  const NsaBranches first(p, a, b, kv_head * group);
  const Nsa& nsa = first.nsa;
  constexpr int kMostPairs = 1 << 16;  // (query, head) pairs
  const bool raw = nsa.phi == Phi::mean;
  const int64_t from = std::max<int64_t>(0, first.tokens() - kMostPairs / group) / (raw ? 1 : nsa.d);
  const int64_t j = std::min<int64_t>(std::max<int64_t>(drawn % rows, from), rows - 1);
  const int64_t count = nsa.compressed(first.tokens());
  Sum dk(p.dim_qk), dv(p.dim_v);
  for (int64_t c = raw ? std::max<int64_t>(0, (j - nsa.l + nsa.d) / nsa.d) : j; c <= (raw ? j / nsa.d : j); ++c) {
    if (c >= count) break;
    const Row k = first.key(0, c, false), v = first.key(0, c, true);
    const double share = raw ? 1.0 / nsa.l : 1;
    for (int g = 0; g < group; ++g) {
      const NsaBranches one(p, a, b, kv_head * group + g);
      for (int i = 0; i < len_q; ++i) {
        if (one.position(i) < c * nsa.d + nsa.l - 1) continue;
        const Given given(one, 0, i);
        const Given::Pair x = given.with(one.scale, k, v);
        dk.add(share * one.scale * x.gradient, share * one.scale * x.noise, given.q);
        dv.add(share * x.weight, share * x.weight, given.d_out);
      }
    }
  }
  const double rounding = rounding_of(p.dtype.kv), rounding_out = rounding_of(p.dtype.grad);
  return worse(dk.judge(read_row(a[Role::dk], b, j, kv_head), rounding, rounding_out),
               dv.judge(read_row(a[Role::dv], b, j, kv_head), rounding, rounding_out));
}

// Gradients of a key in every branch; returns the worst error and names its branch.
double nsa_key_row(const Problem& p, const Args& a, int b, int kv_head, int j, const char*& what) {
  const int group = p.heads_q / p.heads_kv, len_q = a[Role::q].extent.seq;
  double worst = 0;
  if (NsaBranches(p, a, b, 0).wants(Branch::compressed) && a.given(Role::dk) && a.given(Role::dv))
    worst = compressed_row(p, a, b, kv_head, j), what = "dk or dv through the compression,";
  for (int n = 1; n < 3; ++n) {
    const NsaBranches first(p, a, b, kv_head * group);
    if (!first.wants(Branch(n)) || (n == 2 && first.nsa.w == 0)) continue;
    const Role dk_role = d_variant_tensor(2 * n - 2), dv_role = d_variant_tensor(2 * n - 1);
    if (!a.given(dk_role) || !a.given(dv_role)) continue;
    const Row k = first.key(n, j, false), v = first.key(n, j, true);
    Sum dk(p.dim_qk), dv(p.dim_v);
    for (int g = 0; g < group; ++g) {
      const NsaBranches one(p, a, b, kv_head * group + g);
      for (int i = 0; i < len_q; ++i) {
        const int64_t t = one.position(i);
        if (t < j || (n == 2 && t - j >= one.nsa.w)) continue;
        bool seen = n == 2;
        for (int m = 0; !seen && m < one.nsa.n; ++m) seen = one.blocks(i, m) == j / one.nsa.s;
        if (!seen) continue;
        const Given given(one, n, i);
        const Given::Pair x = given.with(one.scale, k, v);
        dk.add(one.scale * x.gradient, one.scale * x.noise, given.q);
        dv.add(x.weight, x.weight, given.d_out);
      }
    }
    const double rounding = rounding_of(p.dtype.kv), rounding_out = rounding_of(p.dtype.grad);
    const double error = worse(dk.judge(read_row(a[dk_role], b, j, kv_head), rounding, rounding_out),
                               dv.judge(read_row(a[dv_role], b, j, kv_head), rounding, rounding_out));
    if (std::isnan(worst) || worse(worst, error) == worst) continue;
    worst = error, what = n == 1 ? "dk or dv of a selected key," : "dk or dv of the window,";
  }
  return worst;
}

}  // namespace attune
