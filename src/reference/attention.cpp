// SPDX-License-Identifier: Apache-2.0
// The golden reference: the definition in double, one query at a time, never optimised, and selected only by name. A
// running result and a sink are one more term of the same sum.
//
// What a run writes is part of the definition (core/args.h), the same for every backend. A forward writes the rows of
// out and lse that belong to queries of its sequences; rows beyond used_q, or outside every sequence, are left
// untouched.
#include <vector>

#include "reference/definition.h"
#include "reference/variants.h"

namespace attune {
namespace {

using namespace reference_detail;

struct Term { int64_t key; double logit; };  // one summand of the softmax

// Buffers for one query, reused for the next.
struct Buffers {
  std::vector<Term> terms;
  std::vector<double> out;
};

void attend(const Definition& one, int64_t h, int64_t i, Buffers& buffers) {
  const Problem& p = one.p;
  const Args& a = one.a;
  const Place at = one.query(i);
  buffers.terms.clear();
  for (int64_t j = 0; j < one.len_k; ++j)
    if (one.sees(h, i, j))
      buffers.terms.push_back({j, one.scored(one.logit(one.product(h, i, j), h, i, j), h, i, j)});
  const double running = p.has(Option::accumulate) ? load(a[Role::lse], at.batch, at.seq, h, 0) : -INFINITY;
  const double sink = p.has(Option::sink) ? load(a[Role::sinks], 0, 0, h, 0) : -INFINITY;
  double top = std::fmax(running, sink);
  for (const Term& t : buffers.terms) top = std::fmax(top, t.logit);
  const auto weight = [top](double logit) { return logit == -INFINITY ? 0 : std::exp(logit - top); };

  double sum = weight(running) + weight(sink);
  buffers.out.assign(size_t(p.dim_v), 0.0);
  if (running != -INFINITY) add_row(buffers.out.data(), weight(running), a[Role::out], at, h, p.dim_v);  // else unread
  for (const Term& t : buffers.terms) {
    const double kept = weight(t.logit) * one.keep(h, i, t.key);
    sum += weight(t.logit);
    add_row(buffers.out.data(), kept, a[Role::v], one.key(t.key), one.kv_head(h), p.dim_v);
  }

  const bool nothing = sum == 0;  // false for NaN
  for (int d = 0; d < p.dim_v; ++d)
    save(a[Role::out], at.batch, at.seq, h, d, nothing ? 0 : buffers.out[size_t(d)] / sum);
  if (a.given(Role::lse)) save(a[Role::lse], at.batch, at.seq, h, 0, nothing ? -INFINITY : top + std::log(sum));
}

Status supports(const Problem& p, const Device& d) {
  if (d.kind != DeviceKind::cpu) return Status::unsupported("reference: requires a CPU, but ", d.name, " is a GPU");
  if (p.has(Option::descale)) return Status::unsupported("reference: does not support the option descale");
  if (const auto w = word(p.variant); !w.empty() && !has_formula(p)) {
    const VariantDefinition* known = find_definition(w);
    if (!known) return Status::unsupported("reference: does not implement the variant ", w);
    if (p.pass == Pass::backward && !known->backward) return Status::unsupported("reference: ", w, " has no gradient");
  }
  return Status::good();
}

// The only backend that allocates in `run`: the number of keys in a cache or page pool is known only here.
Status run(const Plan& plan, const Args& args, Workspace, Stream) {
  const Problem& p = plan.problem;
  const bool backward = p.pass == Pass::backward;
  if (const VariantDefinition* known = find_definition(word(p.variant)))
    return backward ? known->backward(p, args) : known->forward(p, args);
  if (backward) return run_backward(p, args);
  const Appended with(p, args);
  Buffers buffers;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Definition one(p, with.args, b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < one.len_q; ++i) attend(one, h, i, buffers);
  }
  return Status::good();
}

}  // namespace

extern const Backend reference;
const Backend reference{.name = "reference", .only_by_name = true, .supports = supports,
                        .shape = [](Plan&, const Planner&) { return Status::good(); }, .run = run};

}  // namespace attune
