// SPDX-License-Identifier: Apache-2.0
// The words of Native Sparse Attention, one sequence at a time: streams are loaded whole, the parts in nsa_parts.cpp
// process them, and the rows of the sequence are written back. Compressed tokens are kept in the dtype of the keys, as
// in a cache. That rounding is part of the definition, because the selection of blocks depends on it.
#include "reference/nsa.h"

#include <algorithm>
#include <set>

namespace attune::reference_detail {
namespace {

double number(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d) {
  const int64_t at = b * t.stride.batch + s * t.stride.seq + h * t.stride.head + d;
  if (t.dtype == DType::i32) return static_cast<const int32_t*>(t.data)[at];
  if (t.dtype == DType::i64) return double(static_cast<const int64_t*>(t.data)[at]);
  return load(t, b, s, h, d);
}

void put(const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d, double x) {
  const int64_t at = b * t.stride.batch + s * t.stride.seq + h * t.stride.head + d;
  if (t.dtype == DType::i32) static_cast<int32_t*>(t.data)[at] = int32_t(x);
  else if (t.dtype == DType::i64) static_cast<int64_t*>(t.data)[at] = int64_t(x);
  else save(t, b, s, h, d, x);
}

double round_to(DType t, double x) {
  switch (t) {
    case DType::f32: return float(x);
    case DType::f16: return F16(float(x));
    case DType::bf16: return Bf16(float(x));
    default: return x;
  }
}

// The location of one sequence's rows.
struct Sequences {
  const Problem& p;
  const Args& a;
  int64_t b, d;

  int64_t cu(Role r, int64_t n) const { return integer(a[r], 0, 0, n); }
  int64_t cache() const { return a.given(Role::cache_index) ? integer(a[Role::cache_index], b, 0, 0) : b; }
  int64_t len_q() const {
    if (a.given(Role::used_q)) return integer(a[Role::used_q], b, 0, 0);
    return a.given(Role::cu_q) ? cu(Role::cu_q, b + 1) - cu(Role::cu_q, b) : a[Role::q].extent.seq;
  }
  int64_t tokens() const { return a.given(Role::used_k) ? integer(a[Role::used_k], b, 0, 0) : len_q(); }
  int64_t position(int64_t i) const { return tokens() - len_q() + i; }
  Place query() const { return a.given(Role::cu_q) ? Place{0, cu(Role::cu_q, b)} : Place{b, 0}; }
  Place raw() const { return p.keys == KeySource::ragged ? Place{0, cu(Role::cu_q, b)} : Place{cache(), 0}; }
  Place compressed() const {
    return p.keys == KeySource::ragged ? Place{0, cu(Role::cu_q, b) / d} : Place{cache(), 0};
  }
};

Grid grid(const Tensor& t, Place first, int64_t tokens, int64_t from = 0, int64_t heads = 0) {
  Grid g(tokens, heads ? heads : t.extent.head, t.extent.dim);
  for (int64_t i = 0; i < tokens; ++i)
    for (int64_t h = 0; h < g.heads; ++h)
      for (int64_t d = 0; d < g.dim; ++d) g.row(i, h)[d] = number(t, first.batch, first.seq + i, from + h, d);
  return g;
}

void write(const Tensor& t, Place first, const Grid& g, int64_t from = 0) {
  for (int64_t i = 0; t.data && i < g.tokens; ++i)
    for (int64_t h = 0; h < g.heads; ++h)
      for (int64_t d = 0; d < g.dim; ++d) put(t, first.batch, first.seq + i, from + h, d, g.row(i, h)[d]);
}

void clear(const Tensor& t) {
  for (int b = 0; t.data && b < t.extent.batch; ++b) write(t, {b, 0}, Grid(t.extent.seq, t.extent.head, t.extent.dim));
}

// For tensors that are cleared first and written completely.
void accumulate(const Tensor& t, Place first, const Grid& g) {
  if (!t.data) return;
  Grid sum = grid(t, first, g.tokens);
  for (size_t n = 0; n < sum.values.size(); ++n) sum.values[n] += g.values[n];
  write(t, first, sum);
}

Grid rounded(Grid g, DType t) {
  for (double& x : g.values) x = round_to(t, x);
  return g;
}

double scale_of(const Problem& p, const Args& a) {
  return a.scale != 0.f ? double(a.scale) : 1 / std::sqrt(double(p.dim_qk));
}

Weights weights(const Args& a, int first) {
  Weights w;
  for (int n = 0; n < 5; ++n) {
    w.tensor[n] = a[variant_tensor(first + n)];
    w.gradient[n] = a[d_variant_tensor(first + n)];
  }
  return w;
}

// Sets of keys: what each branch of the query at position t sees.
Keys compressed_keys(const Nsa& nsa, int64_t t) {
  Keys keys;
  for (int64_t i = 0; i * nsa.d + nsa.l - 1 <= t; ++i) keys.push_back(i);
  return keys;
}
Keys window_keys(const Nsa& nsa, int64_t t) {
  Keys keys;
  for (int64_t j = std::max<int64_t>(0, t - nsa.w + 1); j <= t; ++j) keys.push_back(j);
  return keys;
}
// An entry is valid if it exceeds all before it; it contributes its existing keys up to the query.
Keys selected_keys(const Nsa& nsa, const double* blocks, int64_t t, int64_t len_k) {
  Keys keys;
  double most = -1;
  for (int n = 0; n < nsa.n; ++n) {
    if (!(blocks[n] > most)) continue;
    most = blocks[n];
    const int64_t first = int64_t(most) * nsa.s;
    for (int64_t j = first; j < first + nsa.s && j <= t && j < len_k; ++j) keys.push_back(j);
  }
  return keys;
}

void forward_compress(const Problem& p, const Args& a, const Nsa& nsa) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequences at{p, a, b, nsa.d};
    const Place to = a.given(Role::cu_q) ? Place{0, at.cu(Role::cu_q, b) / nsa.d} : Place{b, 0};
    write(a[Role::out], to, compress(nsa, weights(a, 0), grid(a[Role::q], at.query(), at.len_q())));
  }
}

void backward_compress(const Problem& p, const Args& a, const Nsa& nsa) {
  for (int n = 0; n < 5; ++n) clear(a[d_variant_tensor(n)]);
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequences at{p, a, b, nsa.d};
    const Grid raw = grid(a[Role::q], at.query(), at.len_q());
    const Place from = a.given(Role::cu_q) ? Place{0, at.cu(Role::cu_q, b) / nsa.d} : Place{b, 0};
    Grid d_raw(raw.tokens, raw.heads, raw.dim);
    const int64_t count = raw.tokens < nsa.l ? 0 : (raw.tokens - nsa.l) / nsa.d + 1;
    compress_backward(nsa, weights(a, 0), raw, grid(a[Role::d_out], from, count), d_raw);
    write(a[Role::dq], at.query(), d_raw);
  }
}

Grid blocks_of(const Nsa& nsa, const Grid& q, const Grid& compressed, const Grid& lse, double scale,
               const Sequences& at) {
  Grid blocks(q.tokens, compressed.heads, nsa.n);
  std::fill(blocks.values.begin(), blocks.values.end(), -1.0);
  for (int64_t i = 0; i < q.tokens; ++i)
    for (int64_t g = 0; g < compressed.heads; ++g) {
      const Keys chosen = select(nsa, q, compressed, lse, scale, i, at.position(i), g);
      std::copy(chosen.begin(), chosen.end(), blocks.row(i, g));
    }
  return blocks;
}

int64_t count(const Nsa& nsa, int64_t tokens) { return tokens < nsa.l ? 0 : (tokens - nsa.l) / nsa.d + 1; }

void forward_select(const Problem& p, const Args& a, const Nsa& nsa) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequences at{p, a, b, nsa.d};
    const Grid q = grid(a[Role::q], at.query(), at.len_q());
    const Grid k = grid(a[Role::k], at.compressed(), count(nsa, at.tokens()));
    Grid lse(q.tokens, q.heads, 1), unused(q.tokens, q.heads, k.dim);
    const auto seen = [&](int64_t i, int64_t) { return compressed_keys(nsa, at.position(i)); };
    if (a.given(Role::lse)) lse = grid(a[Role::lse], at.query(), at.len_q());
    else attend(q, k, k, scale_of(p, a), seen, unused, lse);
    write(a[variant_tensor(0)], at.query(), blocks_of(nsa, q, k, lse, scale_of(p, a), at));
  }
}

// Selected attention is dense except for the set of keys, so its rows are found as in a dense problem.
struct SelectedRows {
  const Definition one;
  Grid q, k, v, blocks;

  SelectedRows(const Problem& p, const Args& a, int64_t b) : one(p, a, b) {
    q = grid(a[Role::q], one.query(0), one.len_q);
    blocks = grid(a[variant_tensor(0)], one.query(0), one.len_q);
    k = grid(a[Role::k], one.key(0), one.len_k);
    v = grid(a[Role::v], one.key(0), one.len_k);
  }
  Seen seen(const Nsa& nsa) const {
    return [this, nsa](int64_t i, int64_t g) {
      return selected_keys(nsa, blocks.row(i, g), one.q_position(i), one.len_k);
    };
  }
};

void forward_selected(const Problem& p, const Args& a, const Nsa& nsa) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const SelectedRows x(p, a, b);
    Grid out(x.q.tokens, x.q.heads, p.dim_v), lse(x.q.tokens, x.q.heads, 1);
    attend(x.q, x.k, x.v, x.one.scale, x.seen(nsa), out, lse);
    write(a[Role::out], x.one.query(0), out);
    write(a[Role::lse], x.one.query(0), lse);
  }
}

void backward_selected(const Problem& p, const Args& a, const Nsa& nsa) {
  clear(a[Role::dk]), clear(a[Role::dv]);
  for (int64_t b = 0; b < p.batch; ++b) {
    const SelectedRows x(p, a, b);
    const Place at = x.one.query(0);
    const auto of = [&](Role r) { return a.given(r) ? grid(a[r], at, x.q.tokens) : Grid(); };
    Grid dq(x.q.tokens, x.q.heads, x.q.dim), dk(x.k.tokens, x.k.heads, x.k.dim), dv(x.v.tokens, x.v.heads, x.v.dim);
    attend_backward(x.q, x.k, x.v, x.one.scale, x.seen(nsa), of(Role::out), of(Role::lse), of(Role::d_out),
                    of(Role::d_lse), dq, dk, dv);
    write(a[Role::dq], at, dq);
    accumulate(a[Role::dk], x.one.key(0), dk);
    accumulate(a[Role::dv], x.one.key(0), dv);
  }
}

// The gates of query i of head h, applied to branch outputs at heads h, H + h, 2 H + h.
void forward_gates(const Nsa& nsa, const Grid& logits, const Grid& branches, Grid& out) {
  for (int64_t i = 0; i < out.tokens; ++i)
    for (int64_t h = 0; h < out.heads; ++h) {
      double gate[3];
      gates(nsa.gate, logits.row(i, h * logits.heads / out.heads), gate);
      for (int n = 0; n < 3; ++n)
        for (int64_t d = 0; d < out.dim; ++d) out.row(i, h)[d] += gate[n] * branches.row(i, n * out.heads + h)[d];
    }
}

void backward_gates(const Nsa& nsa, const Grid& logits, const Grid& branches, const Grid& d_out, Grid& d_logits,
                    Grid& d_branches) {
  for (int64_t i = 0; i < d_out.tokens; ++i)
    for (int64_t h = 0; h < d_out.heads; ++h) {
      const int64_t of = h * logits.heads / d_out.heads;
      double gate[3], d_gate[3] = {0, 0, 0}, d_logit[3];
      gates(nsa.gate, logits.row(i, of), gate);
      for (int n = 0; n < 3; ++n)
        for (int64_t d = 0; d < d_out.dim; ++d) {
          d_gate[n] += d_out.row(i, h)[d] * branches.row(i, n * d_out.heads + h)[d];
          d_branches.row(i, n * d_out.heads + h)[d] = gate[n] * d_out.row(i, h)[d];
        }
      gates_backward(nsa.gate, gate, d_gate, d_logit);
      for (int n = 0; n < 3; ++n) d_logits.row(i, of)[n] += d_logit[n];
    }
}

void forward_gate(const Problem& p, const Args& a, const Nsa& nsa) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequences at{p, a, b, 1};
    const Grid branches = grid(a[Role::q], at.query(), at.len_q());
    Grid out(branches.tokens, p.heads_kv, p.dim_v);
    forward_gates(nsa, grid(a[variant_tensor(0)], at.query(), at.len_q()), branches, out);
    write(a[Role::out], at.query(), out);
  }
}

void backward_gate(const Problem& p, const Args& a, const Nsa& nsa) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequences at{p, a, b, 1};
    const Grid branches = grid(a[Role::q], at.query(), at.len_q());
    const Grid d_out = grid(a[Role::d_out], at.query(), at.len_q());
    const Grid logits = grid(a[variant_tensor(0)], at.query(), at.len_q());
    Grid d_logits(logits.tokens, logits.heads, 3), d_branches(branches.tokens, branches.heads, branches.dim);
    backward_gates(nsa, logits, branches, d_out, d_logits, d_branches);
    write(a[Role::dq], at.query(), d_branches);
    write(a[d_variant_tensor(0)], at.query(), d_logits);
  }
}

struct Reads { double compressed = 0, selected = 0, window = 0, distinct = 0; };

void count_reads(const Nsa& nsa, const Grid& blocks, const Sequences& at, Reads& sum) {
  for (int64_t i = 0; i < blocks.tokens; ++i)
    for (int64_t g = 0; g < blocks.heads; ++g) {
      const int64_t t = at.position(i);
      const Keys chosen = selected_keys(nsa, blocks.row(i, g), t, at.tokens()), near = window_keys(nsa, t);
      std::set<int64_t> all(chosen.begin(), chosen.end());
      all.insert(near.begin(), near.end());
      sum.compressed += double(compressed_keys(nsa, t).size());
      sum.selected += double(chosen.size()), sum.window += double(near.size()), sum.distinct += double(all.size());
    }
}

void write_reads(const Tensor& t, const Reads& sum) {
  const double all[] = {sum.compressed, sum.selected, sum.window, sum.distinct};
  for (int n = 0; t.data && n < 4; ++n) put(t, 0, 0, 0, n, all[n]);
}

void forward_reads(const Problem& p, const Args& a, const Nsa& nsa) {
  Reads sum;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequences at{p, a, b, nsa.d};
    count_reads(nsa, grid(a[variant_tensor(0)], at.query(), at.len_q()), at, sum);
  }
  write_reads(a[variant_tensor(1)], sum);
}

// The streams of one sequence of the whole variant, and what the branches see of them. Missing streams are empty.
struct Whole {
  const Problem& p;
  const Args& a;
  const Nsa nsa;
  const Sequences at;
  const double scale;
  const int64_t tokens;
  Grid q, k[3], v[3];  // keys and values of the branches, in the paper's order

  Whole(const Problem& problem, const Args& args, const Nsa& parameters, int64_t b)
      : p(problem), a(args), nsa(parameters), at{problem, args, b, parameters.d}, scale(scale_of(problem, args)),
        tokens(at.tokens()) {
    q = grid(a[Role::q], at.query(), at.len_q());
    k[0] = compressed(a[Role::k], 5);
    v[0] = compressed(a[Role::v], 10);
    for (int n = 0; n < 2; ++n) {
      k[n + 1] = stream(variant_tensor(2 * n));
      v[n + 1] = stream(variant_tensor(2 * n + 1));
    }
  }
  Grid stream(Role r) const { return a.given(r) ? grid(a[r], at.raw(), tokens) : Grid(tokens, p.heads_kv, 0); }
  Grid compressed(const Tensor& t, int first_weight) const {
    if (!t.data) return {};
    if (nsa.phi == Phi::none) return grid(t, at.compressed(), count(nsa, tokens));
    return rounded(compress(nsa, weights(a, first_weight), grid(t, at.raw(), tokens)), p.dtype.kv);
  }
  bool wants(Branch b) const { return nsa.only == Branch::all || nsa.only == b; }
  Seen seen(Branch b, const Grid& blocks) const {
    return [this, b, &blocks](int64_t i, int64_t g) {
      const int64_t t = at.position(i);
      if (b == Branch::compressed) return compressed_keys(nsa, t);
      return b == Branch::window ? window_keys(nsa, t) : selected_keys(nsa, blocks.row(i, g), t, tokens);
    };
  }
};

constexpr Branch kBranches[] = {Branch::compressed, Branch::selected, Branch::window};

// Branch n of `from`, or stored into it: heads n H ... (n + 1) H.
Grid branch(const Grid& from, int n) {
  const int64_t heads = from.heads / 3;
  Grid g(from.tokens, heads, from.dim);
  for (int64_t i = 0; i < g.tokens; ++i)
    std::copy_n(from.row(i, n * heads), heads * g.dim, g.row(i, 0));
  return g;
}
void put_branch(const Grid& from, int n, Grid& to) {
  for (int64_t i = 0; i < from.tokens; ++i)
    std::copy_n(from.row(i, 0), from.heads * from.dim, to.row(i, n * from.heads));
}

void forward_nsa(const Problem& p, const Args& a, const Nsa& nsa) {
  Reads reads;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Whole x(p, a, nsa, b);
    const Place at = x.at.query();
    const int64_t len = x.q.tokens;
    Grid blocks(len, p.heads_kv, nsa.n), outs(len, 3 * p.heads_q, p.dim_v), lses(len, 3 * p.heads_q, 1);
    if (x.wants(Branch::selected)) {
      // Probabilities need no values, so the keys stand in for them.
      Grid unused(len, p.heads_q, p.dim_qk), lse(len, p.heads_q, 1);
      attend(x.q, x.k[0], x.k[0], x.scale, x.seen(Branch::compressed, blocks), unused, lse);
      blocks = blocks_of(nsa, x.q, x.k[0], lse, x.scale, x.at);
      write(a[variant_tensor(kNsaBlocks)], at, blocks);
    }
    for (int n = 0; n < 3; ++n) {
      if (!x.wants(kBranches[n])) continue;
      Grid out(len, p.heads_q, p.dim_v), lse(len, p.heads_q, 1);
      attend(x.q, x.k[n], x.v[n], x.scale, x.seen(kBranches[n], blocks), out, lse);
      put_branch(out, n, outs), put_branch(lse, n, lses);
      if (nsa.only == Branch::all) continue;
      write(a[Role::out], at, out);
      write(a[Role::lse], at, lse);
    }
    if (nsa.only != Branch::all) continue;
    Grid out(len, p.heads_q, p.dim_v);
    forward_gates(nsa, grid(a[variant_tensor(kNsaGates)], at, len), outs, out);
    write(a[Role::out], at, out);
    write(a[variant_tensor(kNsaBranchOut)], at, outs);
    write(a[variant_tensor(kNsaBranchLse)], at, lses);
    count_reads(nsa, blocks, x.at, reads);
  }
  write_reads(a[variant_tensor(kNsaReads)], reads);
}

void backward_nsa(const Problem& p, const Args& a, const Nsa& nsa) {
  for (const Role r : {Role::dk, Role::dv}) clear(a[r]);
  for (int n = 0; n < 15; ++n)
    if (n != kNsaGates) clear(a[d_variant_tensor(n)]);  // gates belong to queries and are written like dq
  for (int64_t b = 0; b < p.batch; ++b) {
    const Whole x(p, a, nsa, b);
    const Place at = x.at.query();
    const int64_t len = x.q.tokens;
    const bool all = nsa.only == Branch::all;
    const auto of = [&](const Tensor& t) { return t.data ? grid(t, at, len) : Grid(); };
    const Grid blocks = of(a[variant_tensor(kNsaBlocks)]), d_out = of(a[Role::d_out]), d_lse = of(a[Role::d_lse]);
    const Grid outs = of(a[all ? variant_tensor(kNsaBranchOut) : Role::out]);
    const Grid lses = of(a[all ? variant_tensor(kNsaBranchLse) : Role::lse]);
    Grid d_outs = d_out;
    if (all) {
      const Grid logits = of(a[variant_tensor(kNsaGates)]);
      Grid d_logits(len, logits.heads, 3);
      d_outs = Grid(len, 3 * p.heads_q, p.dim_v);
      backward_gates(nsa, logits, outs, d_out, d_logits, d_outs);
      write(a[d_variant_tensor(kNsaGates)], at, d_logits);
    }
    Grid dq(len, p.heads_q, p.dim_qk);
    for (int n = 0; n < 3; ++n) {
      if (!x.wants(kBranches[n]) || (n == 2 && nsa.w == 0)) continue;
      Grid dk(x.k[n].tokens, x.k[n].heads, x.k[n].dim), dv(x.v[n].tokens, x.v[n].heads, x.v[n].dim);
      attend_backward(x.q, x.k[n], x.v[n], x.scale, x.seen(kBranches[n], blocks), all ? branch(outs, n) : outs,
                      all ? branch(lses, n) : lses, all ? branch(d_outs, n) : d_outs, d_lse, dq, dk, dv);
      if (n > 0) {
        accumulate(a[d_variant_tensor(2 * n - 2)], x.at.raw(), dk);
        accumulate(a[d_variant_tensor(2 * n - 1)], x.at.raw(), dv);
      } else if (nsa.phi == Phi::none) {
        accumulate(a[Role::dk], x.at.compressed(), dk);
        accumulate(a[Role::dv], x.at.compressed(), dv);
      } else {
        const auto through = [&](Role from, Role to, int first, const Grid& d_compressed) {
          const Grid raw = grid(a[from], x.at.raw(), x.tokens);
          Grid d_raw(raw.tokens, raw.heads, raw.dim);
          compress_backward(nsa, weights(a, first), raw, d_compressed, d_raw);
          accumulate(a[to], x.at.raw(), d_raw);
        };
        through(Role::k, Role::dk, kNsaPhiK, dk);
        through(Role::v, Role::dv, kNsaPhiV, dv);
      }
    }
    write(a[Role::dq], at, dq);
  }
}

struct Entry {
  std::string_view word;
  void (*forward)(const Problem&, const Args&, const Nsa&);
  void (*backward)(const Problem&, const Args&, const Nsa&);
};
constexpr Entry kEntries[] = {{"compress", forward_compress, backward_compress}, {"select", forward_select, nullptr},
                              {"selected", forward_selected, backward_selected}, {"gate", forward_gate, backward_gate},
                              {"reads", forward_reads, nullptr},                 {"nsa", forward_nsa, backward_nsa}};

Status run(const Problem& p, const Args& a) {
  Nsa nsa;
  if (Status s = read_nsa(p, nsa); !s.ok()) return s;
  for (const Entry& e : kEntries)
    if (e.word == word(p.variant)) (p.pass == Pass::forward ? e.forward : e.backward)(p, a, nsa);
  return Status::good();
}

}  // namespace

Status nsa_forward(const Problem& p, const Args& a) { return run(p, a); }
Status nsa_backward(const Problem& p, const Args& a) { return run(p, a); }

}  // namespace attune::reference_detail
