// SPDX-License-Identifier: Apache-2.0
// cpu_compress: maps every window of l tokens, d apart, to one token: by their mean, by a filter per channel, or by an
// MLP. A backward gathers: a raw token sums the gradients of the windows that contain it, and a weight's gradient is
// one task. Every sum therefore has one order, independent of the number of threads. The MLP stores its hidden values,
// and their gradients, for all tokens.
#include <cmath>

#include "attention/cpu/row_io.h"
#include "core/variant/nsa.h"

namespace attune {
namespace {

using namespace cpu;

// A compressed token: its sequence, its index there, and its head.
struct Token {
  CompressSequence seq;
  int i, h;
};

struct Job {
  const Plan& plan;
  const Problem& p;
  const Args& a;
  const Nsa nsa;
  const int dim, width;  // of a token and of the hidden layer
  const RowsAs raw, out, grad;

  Job(const Plan& made, const Args& args)
      : plan(made), p(made.problem), a(args), nsa(nsa_of(p)), dim(p.dim_qk),
        width(nsa.phi == Phi::mlp ? nsa.width(dim) : 0), raw(p.dtype.q, made.device), out(p.dtype.out, made.device),
        grad(p.dtype.grad == DType::none ? p.dtype.q : p.dtype.grad, made.device) {}

  int rows_of_out() const { return a[p.pass == Pass::forward ? Role::out : Role::d_out].extent.seq; }
  CompressSequence sequence(int b) const { return compress_sequence(p, a, nsa, b, rows_of_out()); }
  const float* weight(int n, int64_t s = 0, int64_t h = 0) const {
    return a.row<const float>(variant_tensor(n), 0, s, a[variant_tensor(n)].extent.head == 1 ? 0 : h);
  }
  float* d_weight(int n, int64_t s = 0, int64_t h = 0) const { return a.row<float>(d_variant_tensor(n), 0, s, h); }
  bool wants(int n) const { return a.given(d_variant_tensor(n)); }

  // Every compressed token has a slot, by the bounds of the problem: [batch][head][len_k].
  int64_t slots() const { return int64_t(p.batch) * p.heads_q * p.len_k; }
  Token token(int64_t slot) const {
    const int i = int(slot % p.len_k), h = int(slot / p.len_k % p.heads_q);
    return {sequence(int(slot / p.len_k / p.heads_q)), i, h};
  }
  // The l raw tokens, one after another.
  void window(const Token& t, float* to) const {
    for (int k = 0; k < nsa.l; ++k)
      raw.read(row_address(a[Role::q], t.seq.batch, t.seq.first + t.i * nsa.d + k, t.h), dim, to + int64_t(k) * dim);
  }
  void read_d_out(const Token& t, float* to) const {
    out.read(row_address(a[Role::d_out], t.seq.batch, t.seq.out_first + t.i, t.h), dim, to);
  }
};

struct Scratch { float *window, *row, *other; };
Scratch carve(Workspace& ws, const Problem& p, const Nsa& nsa) {
  const size_t dim = size_t(p.dim_qk), pitch = std::max(dim, size_t(nsa.width(p.dim_qk)));
  return {ws.take<float>(size_t(nsa.l) * dim), ws.take<float>(pitch), ws.take<float>(pitch)};
}

// MLP backward, one row per slot: silu of the hidden values, and their gradients.
struct Hidden { float *active, *d; };
Hidden carve_hidden(Workspace& ws, const Problem& p, const Nsa& nsa) {
  if (nsa.phi != Phi::mlp || p.pass == Pass::forward) return {};
  const size_t all = size_t(p.batch) * size_t(p.heads_q) * size_t(p.len_k) * size_t(nsa.width(p.dim_qk));
  return {ws.take<float>(all), ws.take<float>(all)};
}

float silu(float x) { return x / (1.f + std::exp(-x)); }
float silu_slope(float x) {
  const float y = 1.f / (1.f + std::exp(-x));
  return y * (1.f + x * (1.f - y));
}

// The argument of silu, from the window of a token.
void hidden(const Job& job, const Token& t, const Scratch& x, float* to) {
  job.window(t, x.window);
  for (int k = 0; k < job.nsa.l; ++k) add_scaled(job.weight(0, k), 1.f, job.dim, x.window + int64_t(k) * job.dim);
  for (int j = 0; j < job.width; ++j) {
    to[j] = job.weight(2)[j];
    for (int k = 0; k < job.nsa.l; ++k)
      to[j] += dot_rows(x.window + int64_t(k) * job.dim, job.weight(1, j, k), job.dim);
  }
}

void forward(const Job& job, const Token& t, const Scratch& x) {
  const int dim = job.dim, l = job.nsa.l;
  if (job.nsa.phi == Phi::mlp) {
    hidden(job, t, x, x.row);
    for (int j = 0; j < job.width; ++j) x.row[j] = silu(x.row[j]);
    for (int c = 0; c < dim; ++c) x.other[c] = job.weight(4)[c] + dot_rows(x.row, job.weight(3, c), job.width);
  } else {
    job.window(t, x.window);
    std::fill_n(x.other, dim, 0.f);
    for (int k = 0; k < l; ++k) {
      const float* from = x.window + int64_t(k) * dim;
      if (job.nsa.phi == Phi::mean) add_scaled(from, 1.f, dim, x.other);
      else
        for (int c = 0; c < dim; ++c) x.other[c] += from[c] * job.weight(0, k, t.h)[c];
    }
    for (int c = 0; job.nsa.phi == Phi::mean && c < dim; ++c) x.other[c] *= 1.f / float(l);
  }
  job.out.write(x.other, dim, row_address(job.a[Role::out], t.seq.batch, t.seq.out_first + t.i, t.h));
}

// The gradient of one raw token, from the windows that contain it.
void backward_token(const Job& job, const CompressSequence& seq, int token, int h, const Hidden& kept, int64_t slot,
                    const Scratch& x) {
  const Nsa& nsa = job.nsa;
  std::fill_n(x.row, job.dim, 0.f);
  const int first = token < nsa.l ? 0 : (token - nsa.l) / nsa.d + 1;
  for (int i = first; i < seq.count && i * nsa.d <= token; ++i) {
    const int k = token - i * nsa.d;
    if (nsa.phi == Phi::mlp) {
      const float* d = kept.d + (slot + i) * job.width;
      for (int j = 0; j < job.width; ++j) add_scaled(job.weight(1, j, k), d[j], job.dim, x.row);
      continue;
    }
    job.read_d_out({seq, i, h}, x.other);
    if (nsa.phi == Phi::mean) add_scaled(x.other, 1.f / float(nsa.l), job.dim, x.row);
    else
      for (int c = 0; c < job.dim; ++c) x.row[c] += x.other[c] * job.weight(0, k, h)[c];
  }
  job.grad.write(x.row, job.dim, row_address(job.a[Role::dq], seq.batch, seq.first + token, h));
}

// Calls f(token, slot) for every existing compressed token of head `only`, or of all heads, in a fixed order.
template <class F>
void each_token(const Job& job, int only, F f) {
  for (int b = 0; b < job.p.batch; ++b) {
    const CompressSequence seq = job.sequence(b);
    for (int h = only < 0 ? 0 : only; h < (only < 0 ? job.p.heads_q : only + 1); ++h)
      for (int i = 0; i < seq.count; ++i)
        f(Token{seq, i, h}, (int64_t(b) * job.p.heads_q + h) * job.p.len_k + i);
  }
}

// Filter: one tap of one head, or of all heads that share it.
void backward_tap(const Job& job, int64_t n, const Scratch& x) {
  const int heads = job.a[d_variant_tensor(0)].extent.head, k = int(n / heads), h = int(n % heads);
  float* to = job.d_weight(0, k, h);
  std::fill_n(to, job.dim, 0.f);
  each_token(job, heads == 1 ? -1 : h, [&](const Token& t, int64_t) {
    job.raw.read(row_address(job.a[Role::q], t.seq.batch, t.seq.first + t.i * job.nsa.d + k, t.h), job.dim, x.row);
    job.read_d_out(t, x.other);
    for (int c = 0; c < job.dim; ++c) to[c] += x.row[c] * x.other[c];
  });
}

// The MLP's hidden values and their gradients, for one token.
void backward_hidden(const Job& job, const Token& t, const Hidden& kept, int64_t slot, const Scratch& x) {
  float *active = kept.active + slot * job.width, *d = kept.d + slot * job.width;
  hidden(job, t, x, x.row);
  job.read_d_out(t, x.other);
  std::fill_n(d, job.width, 0.f);
  for (int c = 0; c < job.dim; ++c) add_scaled(job.weight(3, c), x.other[c], job.width, d);
  for (int j = 0; j < job.width; ++j) active[j] = silu(x.row[j]), d[j] *= silu_slope(x.row[j]);
}

// Row j of w1, with its bias. The gradient of the position is that of the bias times w1, since both are added to all
// tokens.
void backward_w1(const Job& job, int j, const Hidden& kept, const Scratch& x, float* d_bias) {
  for (int k = 0; job.wants(1) && k < job.nsa.l; ++k) std::fill_n(job.d_weight(1, j, k), job.dim, 0.f);
  double sum = 0;
  each_token(job, -1, [&](const Token& t, int64_t slot) {
    const float d = kept.d[slot * job.width + j];
    sum += d;
    for (int k = 0; job.wants(1) && k < job.nsa.l; ++k) {
      job.raw.read(row_address(job.a[Role::q], t.seq.batch, t.seq.first + t.i * job.nsa.d + k, t.h), job.dim, x.row);
      add_scaled(x.row, d, job.dim, job.d_weight(1, j, k));
    }
  });
  for (int k = 0; job.wants(1) && k < job.nsa.l; ++k)
    add_scaled(job.weight(0, k), float(sum), job.dim, job.d_weight(1, j, k));
  d_bias[j] = float(sum);
}

void backward_w2(const Job& job, int c, const Hidden& kept, const Scratch& x) {
  if (job.wants(3)) std::fill_n(job.d_weight(3, c), job.width, 0.f);
  double sum = 0;
  each_token(job, -1, [&](const Token& t, int64_t slot) {
    job.read_d_out(t, x.other);
    sum += x.other[c];
    if (job.wants(3)) add_scaled(kept.active + slot * job.width, x.other[c], job.width, job.d_weight(3, c));
  });
  if (job.wants(4)) job.d_weight(4)[c] = float(sum);
}

Status supports(const Problem& p, const Device& d) { return supports_rows("cpu_compress", "compress", p, d); }

Status shape(Plan& plan, const Planner&) {
  const Nsa nsa = nsa_of(plan.problem);
  Workspace count;
  carve_hidden(count, plan.problem, nsa);
  count.take<float>(size_t(nsa.width(plan.problem.dim_qk)));
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan.problem, nsa); });
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Job job(plan, a);
  const Problem& p = plan.problem;
  const Hidden kept = carve_hidden(ws, p, job.nsa);
  float* d_bias = ws.take<float>(size_t(job.nsa.width(p.dim_qk)));
  const auto scratch = by_worker(ws, [&](Workspace& own) { return carve(own, p, job.nsa); });
  const int units = plan.device.units;
  const auto tokens = [&](auto f) {
    each_task(job.slots(), units, [&](int worker, int64_t n) {
      if (const Token t = job.token(n); t.i < t.seq.count) f(scratch(worker), t, n);
    });
  };
  if (p.pass == Pass::forward) {
    tokens([&](const Scratch& x, const Token& t, int64_t) { forward(job, t, x); });
    return Status::good();
  }
  const bool mlp = job.nsa.phi == Phi::mlp;
  if (mlp) {
    tokens([&](const Scratch& x, const Token& t, int64_t n) { backward_hidden(job, t, kept, n, x); });
    each_task(job.width, units,
              [&](int worker, int64_t n) { backward_w1(job, int(n), kept, scratch(worker), d_bias); });
    if (job.wants(2)) std::copy_n(d_bias, job.width, job.d_weight(2));
    each_task(job.wants(0) ? job.nsa.l : 0, units, [&](int, int64_t k) {
      std::fill_n(job.d_weight(0, k), job.dim, 0.f);
      for (int j = 0; j < job.width; ++j) add_scaled(job.weight(1, j, k), d_bias[j], job.dim, job.d_weight(0, k));
    });
    each_task(job.wants(3) || job.wants(4) ? job.dim : 0, units,
              [&](int worker, int64_t n) { backward_w2(job, int(n), kept, scratch(worker)); });
  } else if (job.wants(0)) {
    each_task(int64_t(job.nsa.l) * a[d_variant_tensor(0)].extent.head, units,
              [&](int worker, int64_t n) { backward_tap(job, n, scratch(worker)); });
  }
  if (!a.given(Role::dq)) return Status::good();
  each_task(int64_t(p.batch) * p.heads_q * p.len_q, units, [&](int worker, int64_t n) {
    const int i = int(n % p.len_q), h = int(n / p.len_q % p.heads_q), b = int(n / p.len_q / p.heads_q);
    const CompressSequence seq = job.sequence(b);
    if (i < seq.tokens)
      backward_token(job, seq, i, h, kept, (int64_t(b) * p.heads_q + h) * p.len_k, scratch(worker));
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_compress{.name = "cpu_compress", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
