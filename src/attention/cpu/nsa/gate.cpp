// SPDX-License-Identifier: Apache-2.0
// cpu_gate: out is the gated sum of three branches, whose outputs are heads h, H + h and 2 H + h of q.
#include <cmath>

#include "attention/cpu/row_io.h"
#include "core/variant/nsa.h"

namespace attune {
namespace {

using namespace cpu;

constexpr int kTaskQueries = 16;

void gates_of(GateOf kind, const float* logit, float gate[3]) {
  if (kind == GateOf::none) return void(std::copy_n(logit, 3, gate));
  const float top = kind == GateOf::softmax ? std::max({logit[0], logit[1], logit[2]}) : 0.f;
  for (int n = 0; n < 3; ++n)
    gate[n] = kind == GateOf::sigmoid ? 1.f / (1.f + std::exp(-logit[n])) : std::exp(logit[n] - top);
  if (kind == GateOf::sigmoid) return;
  const float sum = gate[0] + gate[1] + gate[2];
  for (int n = 0; n < 3; ++n) gate[n] /= sum;
}

void gates_backward(GateOf kind, const float gate[3], const float d_gate[3], float* d_logit) {
  const float mean = gate[0] * d_gate[0] + gate[1] * d_gate[1] + gate[2] * d_gate[2];
  for (int n = 0; n < 3; ++n)
    d_logit[n] += kind == GateOf::none      ? d_gate[n]
                  : kind == GateOf::sigmoid ? d_gate[n] * gate[n] * (1.f - gate[n])
                                            : gate[n] * (d_gate[n] - mean);
}

// Queries of one sequence, and their position.
struct Queries { int batch, first, count; };
Queries queries_of(const Problem& p, const Args& a, int b) {
  Queries s{b, 0, a[Role::q].extent.seq};
  if (const int32_t* cu = a.row<const int32_t>(Role::cu_q)) {
    const int rows = s.count;
    s.batch = 0, s.first = clamp(cu[b], 0, rows);
    s.count = clamp(cu[b + 1], s.first, rows) - s.first;
  }
  s.count = std::min(clamp(a.integer(Role::used_q, b, s.count), 0, s.count), p.len_q);
  return s;
}

struct Scratch { float *branch, *out; };  // 3 rows, and one
Scratch carve(Workspace& ws, const Problem& p) {
  return {ws.take<float>(3 * size_t(p.dim_v)), ws.take<float>(size_t(p.dim_v))};
}

struct Job {
  const Problem& p;
  const Args& a;
  const GateOf kind;
  const RowsAs in, out, grad;

  Job(const Plan& plan, const Args& args)
      : p(plan.problem), a(args), kind(nsa_of(p).gate), in(p.dtype.q, plan.device), out(p.dtype.out, plan.device),
        grad(p.dtype.grad == DType::none ? p.dtype.q : p.dtype.grad, plan.device) {}

  void query(int batch, int64_t row, const Scratch& x) const {
    const int heads = p.heads_kv, dim = p.dim_v, gates = a[variant_tensor(0)].extent.head;
    const bool backward = p.pass == Pass::backward;
    float d_logit[3] = {0.f, 0.f, 0.f};
    for (int h = 0; h < heads; ++h) {
      const int of = int(int64_t(h) * gates / heads);
      float gate[3];
      gates_of(kind, a.row<const float>(variant_tensor(0), batch, row, of), gate);
      for (int n = 0; n < 3; ++n) in.read(row_address(a[Role::q], batch, row, n * heads + h), dim, x.branch + n * dim);
      if (!backward) {
        for (int d = 0; d < dim; ++d)
          x.out[d] = gate[0] * x.branch[d] + gate[1] * x.branch[dim + d] + gate[2] * x.branch[2 * dim + d];
        out.write(x.out, dim, row_address(a[Role::out], batch, row, h));
        continue;
      }
      out.read(row_address(a[Role::d_out], batch, row, h), dim, x.out);
      float d_gate[3];
      for (int n = 0; n < 3; ++n) {
        float* branch = x.branch + n * dim;
        d_gate[n] = dot_rows(x.out, branch, dim);
        for (int d = 0; d < dim; ++d) branch[d] = gate[n] * x.out[d];
        if (a.given(Role::dq)) grad.write(branch, dim, row_address(a[Role::dq], batch, row, n * heads + h));
      }
      // Heads that share gates are adjacent.
      gates_backward(kind, gate, d_gate, d_logit);
      if (h + 1 < heads && int64_t(h + 1) * gates / heads == of) continue;
      if (float* to = a.row<float>(d_variant_tensor(0), batch, row, of)) std::copy_n(d_logit, 3, to);
      std::fill_n(d_logit, 3, 0.f);
    }
  }
};

Status supports(const Problem& p, const Device& d) { return supports_rows("cpu_gate", "gate", p, d); }

Status shape(Plan& plan, const Planner&) {
  Workspace count;
  return count_workspace(plan, count, [&](Workspace& own) { carve(own, plan.problem); });
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream) {
  const Job job(plan, a);
  const Problem& p = plan.problem;
  int longest = 0;  // p.len_q is only a bound
  for (int b = 0; b < p.batch; ++b) longest = std::max(longest, queries_of(p, a, b).count);
  const int64_t tasks = ceil_div(longest, kTaskQueries);
  const auto scratch_of = by_worker(ws, [&](Workspace& own) { return carve(own, p); });
  each_task(p.batch * tasks, plan.device.units, [&](int worker, int64_t n) {
    const Scratch x = scratch_of(worker);
    const Queries s = queries_of(p, a, int(n / tasks));
    const int64_t first = n % tasks * kTaskQueries;
    const int64_t last = std::min<int64_t>(first + kTaskQueries, s.count);
    for (int64_t i = first; i < last; ++i) job.query(s.batch, s.first + i, x);
  });
  return Status::good();
}

}  // namespace

extern const Backend cpu_gate{.name = "cpu_gate", .supports = supports, .shape = shape, .run = run};

}  // namespace attune
