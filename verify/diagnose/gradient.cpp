// SPDX-License-Identifier: Apache-2.0
#include "verify/diagnose/gradient.h"

#include <array>
#include <set>

#include "core/check.h"

namespace attune {
namespace {

// A row of dk or dv: what each query head of its group adds to it, and the size of its terms, which may cancel.
struct Terms {
  std::vector<Row> of_head{};
  double size = 0;
};
struct Column {
  int b, g, j;  // batch, KV head, key
  Terms dk{}, dv{};
};
enum class Heads { group, modulo };  // the query heads of KV head g: g * group + n, or g + n * heads_kv

// From the given out and lse, by the definition.
Column column(const Problem& p, const Args& a, const Reading& right, int b, int g, int j, Heads which) {
  Column c{b, g, j};
  const Sequence s = sequence(p, a, b);
  const int group = p.heads_q / p.heads_kv;
  double size_k = 0, size_v = 0;
  for (int n = 0; n < group; ++n) {
    Reader r(p, a, b, which == Heads::group ? g * group + n : g + n * p.heads_kv, 0);
    const Row k = r.key(Role::k, s, j, g, false), v = r.key(Role::v, s, j, g, false);
    Row& dk = c.dk.of_head.emplace_back(k.size());
    Row& dv = c.dv.of_head.emplace_back(v.size());
    for (r.i = 0; r.i < s.len_q; ++r.i) {
      const int count = s.band.visible(r.i, j) ? r.pairs.times(r.i, j) : 0;
      if (!count) continue;
      const auto query = [&](Role role) { return read_row(a[role], s.q_batch, s.q_first + r.i, r.h); };
      const Row q = query(Role::q), d_out = query(Role::d_out);
      const double product = dot(q, k), x = product * right.scale;
      const double cap = p.has(Option::softcap) ? double(a.softcap) : 0;
      const double slope = cap > 0 ? 1 - std::pow(std::tanh(x / cap), 2) : 1;
      const double weight = r.pairs.factor() * count * std::exp(r.logit(product, right.scale, s.band, j) - r.lse());
      const double dp = dot(d_out, v), delta = dot(d_out, query(Role::out)) / r.pairs.factor();
      for (size_t d = 0; d < q.size(); ++d) {
        dk[d] += right.gradient_scale * weight * slope * (dp - delta) * q[d];
        size_k += std::pow(right.gradient_scale * weight * (std::abs(dp) + std::abs(delta)) * q[d], 2);
      }
      for (size_t d = 0; d < d_out.size(); ++d)
        dv[d] += weight * d_out[d], size_v += std::pow(weight * d_out[d], 2);
    }
  }
  c.dk.size = std::sqrt(size_k), c.dv.size = std::sqrt(size_v);
  return c;
}

Row sum(const Terms& t, double factor) {
  Row all(t.of_head.front().size());
  for (const Row& one : t.of_head)
    for (size_t d = 0; d < all.size(); ++d) all[d] += factor * one[d];
  return all;
}

// A few keys of rows that were drawn, each once.
std::vector<Column> columns(const Problem& p, const Args& a, const Reading& right, const std::vector<Reader>& rows,
                            Heads which) {
  constexpr size_t kMost = 8;
  std::vector<Column> all;
  std::set<std::array<int, 3>> seen;
  for (const Reader& r : rows) {
    const int keys = sequence(p, a, r.b).len_k;
    if (keys < 1 || all.size() == kMost) continue;
    const std::array<int, 3> at = {r.b, r.h / (p.heads_q / p.heads_kv), r.i % keys};
    if (seen.insert(at).second) all.push_back(column(p, a, right, at[0], at[1], at[2], which));
  }
  return all;
}

// What a row of dk or dv is instead of the sum over its group.
struct Instead {
  const char* name;
  const char* sentence;
  Row (*row)(const Terms& own, double scale);
};
constexpr Instead kInstead[] = {
    {"missing-group-sum", "is that of the last head of its group, not the sum over them",
     [](const Terms& t, double) { return t.of_head.back(); }},
    {"missing-group-sum", "is that of the first head of its group, not the sum over them",
     [](const Terms& t, double) { return t.of_head.front(); }},
    {"missing-group-sum", "is the mean over the heads of its group, not their sum",
     [](const Terms& t, double) { return sum(t, 1 / double(t.of_head.size())); }},
    {"missing-scale", "is not multiplied by the scale", [](const Terms& t, double scale) { return sum(t, 1 / scale); }},
    {"missing-scale", "is multiplied by the scale twice", [](const Terms& t, double scale) { return sum(t, scale); }},
};

struct Gradients {
  const Problem& p;
  const Args& a;
  const Reading& right;
  const std::vector<Reader>& rows;
  double close;
  std::vector<Column> all = columns(p, a, right, rows, Heads::group);

  Row written(Role role, const Column& c) const {
    const Sequence s = sequence(p, a, c.b);
    return Reader(p, a, c.b, c.g * (p.heads_q / p.heads_kv), 0).key(role, s, c.j, c.g, false);
  }
  const Terms& terms(Role role, const Column& c) const { return role == Role::dk ? c.dk : c.dv; }
  // Whether all rows of `role` that were drawn are these; sums of terms that cancel are judged by the terms' size.
  template <class Expected>
  bool is(Role role, const std::vector<Column>& of, const Expected& expected) const {
    return std::all_of(of.begin(), of.end(), [&](const Column& c) {
      const std::pair<Row, double> row = expected(c);
      return distance(written(role, c), row.first, std::max(1e-6, 0.5 * row.second)) <= close;
    });
  }
  bool holds(Role role, Role other) const {
    return is(role, all, [&](const Column& c) { return std::pair(sum(terms(other, c), 1), terms(other, c).size); });
  }
  bool is_instead(Role role, const Instead& other) const {
    return is(role, all, [&](const Column& c) {
      return std::pair(other.row(terms(role, c), right.scale), terms(role, c).size);
    });
  }

  Mistake mistake(Role role) const {
    const std::string who = name(role);
    if (const Role other = role == Role::dk ? Role::dv : Role::dk; holds(role, other))
      return {"swapped-gradients", join(who, " holds ", name(other))};
    const bool grouped = p.heads_q > p.heads_kv;
    for (const Instead& other : kInstead) {
      if (!grouped && std::string_view(other.name) == "missing-group-sum") continue;
      if (role == Role::dv && std::string_view(other.name) == "missing-scale") continue;
      if (is_instead(role, other)) return {other.name, join(who, " ", other.sentence)};
    }
    if (grouped) {
      const std::vector<Column> modulo = columns(p, a, right, rows, Heads::modulo);
      if (is(role, modulo, [&](const Column& c) { return std::pair(sum(terms(role, c), 1), terms(role, c).size); }))
        return {"head-order", join(who, " of KV head h sums query heads h % heads_kv instead of h / group")};
    }
    return {};
  }
};

// dk or dv rows that hold a NaN or poison.
Mistake unwritten_keys(const Problem& p, const Args& a, const std::vector<Reader>& rows) {
  for (const Role role : {Role::dk, Role::dv})
    for (const Reader& r : rows) {
      const Sequence s = sequence(p, a, r.b);
      if (!a.given(role) || s.len_k < 1) continue;
      const int j = r.i % s.len_k, head = r.h / (p.heads_q / p.heads_kv);
      if (is_unwritten(r.key(role, s, j, head, false)))
        return {"unwritten-output", join(name(role), " row ", j, " of batch ", r.b, ", head ", head,
                                         " was not written, or is NaN")};
    }
  return {};
}

// Rows of dq that are rows of dk or dv, where their shapes let them.
Mistake swapped_dq(const Problem& p, const Args& a, const std::vector<Reader>& rows, const Reading& right,
                   double close) {
  if (p.heads_q != p.heads_kv || p.len_q != p.len_k || p.keys != KeySource::linear) return {};
  const Gradients of{p, a, right, rows, close};
  for (const Role role : {Role::dk, Role::dv}) {
    const auto holds = [&](const Column& c) {
      const Terms& t = of.terms(role, c);
      const Row dq = Reader(p, a, c.b, c.g, c.j).written(Order::said);
      return distance(dq, sum(t, 1), std::max(1e-6, 0.5 * t.size)) <= close;
    };
    if (!of.all.empty() && std::all_of(of.all.begin(), of.all.end(), holds))
      return {"swapped-gradients", join("dq holds ", name(role))};
  }
  return {};
}

}  // namespace

Mistake diagnose_gradient(const Problem& p, const Args& a, const std::vector<Reader>& rows,
                          const std::vector<Reading>& all, double close) {
  if (rows.empty()) return {};
  // The gradient of a row that sees one key is pure rounding, so it is judged by the size of its terms.
  const auto error = [&](Forward forward) {
    return [forward](const Reader& row, const Reading& reading) {
      double size = 0;
      const Answer expected = row.gradient(reading, forward, size);
      return row.error(reading, expected, std::max(1e-6, 0.5 * size));
    };
  };
  const auto of_given = error(Forward::given);
  const bool right = std::all_of(rows.begin(), rows.end(),
                                 [&](const Reader& row) { return of_given(row, all[0]) <= close; });
  if (!right) {
    for (const Forward forward : {Forward::given, Forward::own})
      if (const Reading* const best = explaining(rows, all, close, error(forward)))
        return {best->name, best->sentence};
    if (Mistake m = unwritten(rows); !m.name.empty()) return m;
    return swapped_dq(p, a, rows, all[0], close);
  }
  if (Mistake m = unwritten_keys(p, a, rows); !m.name.empty()) return m;
  if (!a.given(Role::dk) || !a.given(Role::dv)) return {};
  const Gradients of{p, a, all[0], rows, close};
  for (const Role role : {Role::dk, Role::dv})
    if (!of.all.empty() && !of.holds(role, role)) return of.mistake(role);
  return {};
}

}  // namespace attune
