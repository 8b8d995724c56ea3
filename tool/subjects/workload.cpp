// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/workload.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/work.h"
#include "core/variant/nsa.h"
#include "core/forward_of.h"
#include "tool/subjects/ring_run.h"
#include "variants/blocks/blocks.h"

namespace attune {
namespace {

constexpr std::string_view kDistribution[] = {"normal", "uniform", "zeros"};

void fill(const Tensor& t, Distribution distribution, Random& random) {
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int h = 0; h < t.extent.head; ++h)
        for (int d = 0; d < t.extent.dim; ++d)
          store(t, b, s, h, d, distribution == Distribution::uniform ? 2 * random.uniform() - 1 : 0);
}

}  // namespace

size_t span_bytes(const Tensor& t) {
  const Extents& e = t.extent;
  if (!e.batch || !e.seq || !e.head || !e.dim) return 0;
  const int64_t last =
      (e.batch - 1) * t.stride.batch + (e.seq - 1) * t.stride.seq + (e.head - 1) * t.stride.head + e.dim - 1;
  return size_t(last + 1) * size_t(size_of(t.dtype));
}

void Memory::Free::operator()(std::byte* p) const { std::free(p); }

Memory::Memory(size_t bytes) : bytes_(bytes) {
  constexpr size_t kPage = 4096;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes / kPage + 1) * kPage)));
  if (!data_) throw std::bad_alloc();
}

void Memory::poison() const { std::memset(data_.get(), 0xFF, bytes_); }

Status parse(std::string_view word, Distribution& out) {
  for (int n = 0; n < 3; ++n)
    if (word == kDistribution[n]) return out = Distribution(n), Status::good();
  return Status::no("--dist: '", word, "' is not one of normal, uniform, zeros");
}
std::string name(Distribution d) { return std::string(kDistribution[int(d)]); }

void Workload::rehome(Role r, bool copy) {
  Tensor& t = args[r];
  const Memory& m = memory_.emplace_back(span_bytes(t));
  if (copy) std::memcpy(m.data(), t.data, m.bytes());
  else m.poison();
  t.data = m.data();
}

Workload::Workload(const Problem& p, Layout layout, uint32_t seed, Distribution distribution,
                   const std::vector<int32_t>& lengths, std::string_view pattern, bool aligned)
    : problem_(p), world_(std::make_unique<World>(p, Variation{.seed = seed, .layout = layout, .pad = 0})) {
  const Args forward = p.pass == Pass::backward ? world_->forward_result() : Args{};
  made_ = world_->outputs(false);
  args = made_.args;
  if (forward.given(Role::out) && !args.given(Role::out)) forward_out_ = forward[Role::out];
  outputs_ = made_.roles;
  // A cache that is appended to is also read, so it keeps its values.
  std::erase_if(outputs_, [](Role r) { return r == Role::k || r == Role::v; });
  const bool running = p.has(Option::accumulate);
  for (int n = 0; aligned && n < int(Role::count); ++n) {
    const Role r = Role(n);
    const bool output = std::find(outputs_.begin(), outputs_.end(), r) != outputs_.end();
    if (args.given(r)) rehome(r, !output || running);
  }
  if (aligned) world_.reset(), made_ = {};
  for (const Role r : {Role::cu_q, Role::cu_k})
    if (int32_t* cu = args.row<int32_t>(r); cu && int(lengths.size()) == p.batch)
      for (int b = 0; b < p.batch; ++b) cu[b + 1] = cu[b] + lengths[size_t(b)];
  if (BlockSource from; !pattern.empty() && parse(pattern, p, from.pattern).ok()) {
    from.counts = blocks_.data();
    (void)build_blocks(p, args, from, nullptr);  // cannot fail: World allocated these lists for this problem
  }
  if (distribution == Distribution::normal) return;
  Random random{seed};
  for (const Role r : {Role::q, Role::k, Role::v, Role::d_out})
    if (args.given(r)) fill(args[r], distribution, random);
}

void Workload::poison_outputs() { poison(args); }

void Workload::poison(const Args& other) const {
  if (accumulates()) return;
  for (const Role r : outputs_)
    if (other[r].data) std::memset(other[r].data, 0xFF, span_bytes(other[r]));
}

Args Workload::other_outputs() {
  Args other = args;
  for (const Role r : outputs_) {
    const Memory& m = memory_.emplace_back(span_bytes(other[r]));
    m.poison();
    other[r].data = m.data();
  }
  return other;
}

Status Workload::plan_forward(const Planner& given, Plan& out) const {
  Planner planner = given;
  planner.forced = {};
  return planner.plan(forward_of(problem_), out);
}

Status Workload::run_forward(const Planner& planner) {
  Plan plan;
  if (Status s = plan_forward(planner, plan); !s.ok()) return s;
  const Memory workspace(plan.workspace_bytes), out(span_bytes(forward_out_));
  Args inputs = forward_of(args);
  if (forward_out_.data) inputs[Role::out] = forward_out_, inputs[Role::out].data = out.data();
  return plan.backend->run(plan, inputs, Workspace{workspace.data()}, nullptr);
}

double estimated_bytes(const Problem& p) { return cost(whole_problem(p)).bytes; }

double scores_bytes(const Problem& p) {
  const double keys = is_ring(p) ? double(ring_of(p).shards.tokens) : p.len_k;
  return double(p.batch) * p.heads_q * double(p.len_q) * keys * size_of(p.dtype.kv);
}

// Every branch of native sparse attention has its own raw tokens; the compressed branch also has compressed tokens.
double cache_bytes(const Problem& p) {
  const std::string_view variant = word(p.variant);
  double keys = p.len_k, values = p.len_k;  // per KV head
  if (variant == "compress" || variant == "gate" || variant == "reads") {
    keys = values = 0;
  } else if (variant == "select") {
    keys = double(nsa_of(p).compressed(p.len_k)), values = 0;
  } else if (variant == "nsa") {
    const Nsa nsa = nsa_of(p);
    const bool all = nsa.only == Branch::all, chosen = all || nsa.only == Branch::selected;
    const double branch = (nsa.phi == Phi::none ? 0. : p.len_k) + double(nsa.compressed(p.len_k));
    const double others = (chosen ? p.len_k : 0.) + ((all && nsa.w) || nsa.only == Branch::window ? p.len_k : 0.);
    keys = others + (nsa.only == Branch::window ? 0 : branch);  // blocks are selected by compressed keys
    values = others + (all || nsa.only == Branch::compressed ? branch : 0);
  }
  return double(p.batch) * p.heads_kv * (keys * p.dim_qk + values * p.dim_v) * size_of(p.dtype.kv);
}

double token_bytes(const Problem& p) { return cache_bytes(p) / (double(p.batch) * p.len_k); }

}  // namespace attune
