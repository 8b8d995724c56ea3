// SPDX-License-Identifier: Apache-2.0
// nsa: Native Sparse Attention composed of its parts, on CPUs and GPUs alike.
//   forward   compress k and v -> attend to compressed tokens -> select blocks by their probabilities -> attend to the
//             blocks' raw tokens -> attend to the window -> gated sum
//   backward  of the gates, then of the three branches from what the forward saved, then of the compression. dq is one
//             f32 sum over the branches; the selection of blocks has no gradient.
// A query without a compressed token, block or window has 0 there, and its gates still apply. Branches are heads
// n H ... (n + 1) H of one tensor, so a branch is a view. With only= one branch runs, into out and lse.
#include <algorithm>

#include "variants/nsa/lengths.h"
#include "machine/tensor_ops.h"
#include "plan/backend.h"
#include "variants/nsa/steps.h"
#include "variants/sub_plans.h"

namespace attune {
namespace {

constexpr std::string_view kWho = "nsa";

// Heads [first, first + count) of a tensor.
Tensor pick_heads(Tensor t, int first, int count) {
  if (!t.data) return t;
  t.data = row_address(t, 0, 0, first), t.extent.head = count;
  return t;
}

// Intermediate tensors between the steps. Counted by the problem's bounds, created with the extents of a call.
struct Between {
  Tensor k, v;                   // compressed, [batch, tokens, head, dim]; ragged batches use one row
  Tensor out, lse, blocks;       // branches, if the caller does not keep them
  Tensor cu, used, positions;    // variants/nsa/lengths.h
  Tensor d_out;                  // branches
  Tensor dq, dk, dv, dk_compressed, dv_compressed;  // sums, f32
};

class Carver {
 public:
  Carver(Workspace& ws, const Tensor& like) : ws_(ws), like_(like) {}
  // Reserves `rows` rows; the tensor uses as many as its extents need.
  Tensor take(DType dtype, int64_t rows, const Extents& e) {
    Tensor t{.data = ws_.take<std::byte>(size_t(rows) * size_t(e.head) * size_t(e.dim) * size_t(size_of(dtype))),
             .dtype = dtype, .device = like_.device, .device_index = like_.device_index, .extent = e};
    const int64_t token = int64_t(e.head) * e.dim;
    t.stride = {e.batch == 1 ? 0 : e.seq * token, e.seq == 1 ? 0 : token, e.head == 1 ? 0 : e.dim};
    return t;
  }

 private:
  Workspace& ws_;
  const Tensor& like_;
};

// For all sequences; packed ones may start one row later than necessary.
int64_t compressed_rows(const NsaShape& s) {
  return s.p.batch * std::max<int64_t>(s.compressed_bound(), s.p.len_k / s.nsa.d + 1);
}

Between carve(Workspace& ws, const NsaShape& s, const Args& a) {
  const Problem& p = s.p;
  const Tensor& q = a[Role::q];
  Carver carver(ws, q);
  const auto queries = [&](DType t, int heads, int dim) {
    return carver.take(t, s.queries(), {q.extent.batch, q.extent.seq, heads, dim});
  };
  const auto keys = [&](DType t, const Extents& like, int64_t rows, int dim) {
    return carver.take(t, rows, {like.batch, like.seq, p.heads_kv, dim});
  };
  const bool all = s.nsa.only == Branch::all;
  Between x{};
  // A ragged batch has floor(tokens / d) rows; otherwise each sequence has as many as the bound allows.
  Extents compressed{p.batch, int(s.compressed_bound()), 0, 0};
  if (s.ragged) compressed = {1, std::max(1, a[Role::k].extent.seq / s.nsa.d), 0, 0};
  if (s.takes(NsaStep::compress_k)) x.k = keys(p.dtype.kv, compressed, compressed_rows(s), p.dim_qk);
  if (s.takes(NsaStep::compress_v)) x.v = keys(p.dtype.kv, compressed, compressed_rows(s), p.dim_v);
  x.cu = carver.take(DType::i32, 1, {1, 1, 1, p.batch + 1});
  x.used = carver.take(DType::i32, p.batch, {p.batch, 1, 1, 1});
  x.positions = carver.take(DType::i64, p.batch, {p.batch, 1, 1, 2});
  if (!s.backward) {
    if (all) x.out = queries(p.dtype.out, 3 * p.heads_q, p.dim_v), x.lse = queries(DType::f32, 3 * p.heads_q, 1);
    if (s.takes(NsaStep::select)) x.blocks = queries(DType::i32, p.heads_kv, s.nsa.n);
    return x;
  }
  if (all) x.d_out = queries(p.dtype.out, 3 * p.heads_q, p.dim_v);
  if (s.sums_apart) {
    x.dq = queries(DType::f32, p.heads_q, p.dim_qk);
    // For one stream of raw keys at a time.
    const Extents raw = a[variant_tensor(s.has(Branch::selected) ? kNsaSelect : kNsaWindow)].extent;
    const int64_t rows = int64_t(p.batch) * p.len_k;
    if (s.takes(NsaStep::selected_backward) || s.takes(NsaStep::window_backward))
      x.dk = keys(DType::f32, raw, rows, p.dim_qk), x.dv = keys(DType::f32, raw, rows, p.dim_v);
  }
  if (s.takes(NsaStep::compressed_backward) && (s.sums_apart || s.nsa.phi != Phi::none)) {
    if (s.nsa.phi == Phi::none) compressed = a[Role::k].extent;
    x.dk_compressed = keys(DType::f32, compressed, compressed_rows(s), p.dim_qk);
    x.dv_compressed = keys(DType::f32, compressed, compressed_rows(s), p.dim_v);
  }
  return x;
}

Status supports(const Problem& p, const Device&) {
  if (word(p.variant) != kWho) return not_variant(kWho, kWho, p);
  if (p.dtype.q != p.dtype.kv)
    return Status::unsupported(kWho, ": q is ", name(p.dtype.q), " and kv is ", name(p.dtype.kv),
                               "; both must be the same");
  return Status::good();
}

Status shape(Plan& plan, const Planner& planner) {
  const NsaShape s(plan.problem);
  size_t scratch = 0;
  for (int n = 0; n < int(NsaStep::count); ++n) {
    if (!s.takes(NsaStep(n))) continue;
    if (Status t = plan_part(kWho, s.problem(NsaStep(n)), planner, plan); !t.ok()) return t;
    scratch = std::max(scratch, plan.sub_plans.back().workspace_bytes);
  }
  Workspace count;
  carve(count, s, {});
  count.take<std::byte>(scratch);
  plan.workspace_bytes = count.used;
  return Status::good();
}

// What happens at each step: it runs, or its backend says whether it fits its arguments.
enum class Each { runs, fits };

class Run {
 public:
  Run(const Plan& plan, const Args& a, Workspace ws, Stream stream, Each each)
      : plan_(plan), s_(plan.problem), p_(plan.problem), a_(a), ws_(ws), stream_(stream), each_(each) {
    x_ = carve(ws_, s_, a);
  }

  Status run() {
    if (each_ == Each::runs)
      if (Status s = room(); !s.ok()) return s;
    if (Status s = lengths(); !s.ok()) return s;
    return s_.backward ? backward() : forward();
  }

 private:
  // The workspace is sized by the problem's bounds. A cache may have more rows, for which a backward has no sums.
  Status room() const {
    const auto within = [&](std::string_view what, const Tensor& t, int64_t most) {
      const int64_t rows = int64_t(t.extent.batch) * t.extent.seq;
      if (rows <= most) return Status::good();
      return Status::no(what, " has ", rows, " tokens; the problem has room for ", most);
    };
    if (Status s = within("q", a_[Role::q], s_.queries()); !s.ok() || !s_.backward) return s;
    for (const int n : {kNsaSelect, kNsaWindow})
      if (a_.given(variant_tensor(n)))
        if (Status s = within("a stream", a_[variant_tensor(n)], int64_t(p_.batch) * p_.len_k); !s.ok()) return s;
    if (s_.nsa.phi != Phi::none || !a_.given(Role::k)) return Status::good();
    return within("k", a_[Role::k], compressed_rows(s_));
  }
  Status lengths() {
    if (!s_.has(Branch::compressed)) return Status::good();
    NsaLengths x{.nsa = s_.nsa, .batch = p_.batch, .rows_q = a_[Role::q].extent.seq, .cu_q = a_[Role::cu_q],
                 .used_q = a_[Role::used_q], .used_k = a_[Role::used_k], .used = x_.used, .positions = x_.positions};
    if (s_.ragged) x.cu = x_.cu;
    return each_ == Each::runs ? nsa_lengths(x, stream_) : Status::good();
  }

  Status step(NsaStep n, const Args& part) {
    const Plan& plan = plan_.sub_plans[size_t(s_.index(n))];
    if (each_ == Each::runs) return plan.backend->run(plan, part, ws_, stream_);
    return plan.backend->fits ? plan.backend->fits(plan, part) : Status::good();
  }
  Status clear(const Tensor& t) const { return each_ == Each::runs ? fill(t, 0.f, stream_) : Status::good(); }
  Status round(const Tensor& from, const Tensor& to) const {
    return each_ == Each::runs ? convert(from, to, stream_) : Status::good();
  }
  // Arguments common to every step with queries.
  Args queries() const {
    Args part;
    part.scale = a_.scale;
    for (const Role r : {Role::cu_q, Role::used_q}) part[r] = a_[r];
    return part;
  }
  Args attention(const Tensor& k, const Tensor& v) const {
    Args part = queries();
    for (const Role r : {Role::q, Role::cu_k, Role::used_k, Role::cache_index}) part[r] = a_[r];
    if (!a_.given(Role::used_k)) part[Role::used_k] = a_[Role::used_q];  // then the queries are all tokens
    part[Role::k] = k, part[Role::v] = v;
    return part;
  }
  Args compressed_attention() const {
    Args part = attention(keys(), s_.takes(NsaStep::compress_v) ? x_.v : a_[Role::v]);
    part[Role::positions] = x_.positions, part[Role::used_k] = x_.used;
    if (s_.ragged) part[Role::cu_k] = x_.cu;
    return part;
  }
  Tensor keys() const { return s_.takes(NsaStep::compress_k) ? x_.k : a_[Role::k]; }
  // Output or lse of branch b: its heads of the kept tensor or of the workspace; with only=, the call's own tensor.
  Tensor of_branch(Branch b, Role alone, int kept, const Tensor& between) const {
    if (s_.nsa.only != Branch::all) return a_[alone];
    return pick_heads(a_.given(variant_tensor(kept)) ? a_[variant_tensor(kept)] : between, int(b) * p_.heads_q,
                      p_.heads_q);
  }
  Tensor out_of(Branch b) const { return of_branch(b, Role::out, kNsaBranchOut, x_.out); }
  Tensor lse_of(Branch b) const { return of_branch(b, Role::lse, kNsaBranchLse, x_.lse); }
  Tensor blocks() const { return a_.given(variant_tensor(kNsaBlocks)) ? a_[variant_tensor(kNsaBlocks)] : x_.blocks; }
  // Streams of an empty window are not given; none of their rows is read.
  Tensor stream(int n) const { return a_[variant_tensor(a_.given(variant_tensor(n)) ? n : n - 2)]; }
  Args attention_to(int first) const { return attention(stream(first), stream(first + 1)); }

  Args compression(Role raw, int first_weight, const Tensor& out) const {
    Args part;
    part[Role::q] = a_[raw], part[Role::out] = out;
    part[Role::cu_q] = a_[Role::cu_k], part[Role::used_q] = a_[Role::used_k];
    for (int n = 0; n < 5; ++n) part[variant_tensor(n)] = a_[variant_tensor(first_weight + n)];
    return part;
  }
  Status compress() {
    if (s_.takes(NsaStep::compress_k))
      if (Status s = step(NsaStep::compress_k, compression(Role::k, kNsaPhiK, x_.k)); !s.ok()) return s;
    if (s_.takes(NsaStep::compress_v)) return step(NsaStep::compress_v, compression(Role::v, kNsaPhiV, x_.v));
    return Status::good();
  }

  Status forward() {
    if (Status s = compress(); !s.ok()) return s;
    const auto attend = [&](NsaStep n, Branch b, Args part) {
      part[Role::out] = out_of(b), part[Role::lse] = lse_of(b);
      if (n == NsaStep::selected) part[variant_tensor(0)] = blocks();
      return step(n, part);
    };
    if (s_.takes(NsaStep::compressed))
      if (Status s = attend(NsaStep::compressed, Branch::compressed, compressed_attention()); !s.ok()) return s;
    if (s_.takes(NsaStep::select)) {
      Args part = attention(keys(), {});
      part[Role::cu_k] = {};
      // Without lse, a selection computes its own in one more pass. Its bits do not depend on the other queries in the
      // call, unlike those of an attention with KV splits.
      if (s_.takes(NsaStep::compressed) && p_.reproducible != Reproducible::batch)
        part[Role::lse] = lse_of(Branch::compressed);
      part[variant_tensor(0)] = blocks();
      if (Status s = step(NsaStep::select, part); !s.ok()) return s;
      if (Status s = attend(NsaStep::selected, Branch::selected, attention_to(kNsaSelect)); !s.ok()) return s;
    }
    if (s_.takes(NsaStep::window))
      if (Status s = attend(NsaStep::window, Branch::window, attention_to(kNsaWindow)); !s.ok()) return s;
    if (!s_.takes(NsaStep::gate)) return Status::good();
    Args part = queries();
    part[Role::q] = a_.given(variant_tensor(kNsaBranchOut)) ? a_[variant_tensor(kNsaBranchOut)] : x_.out;
    part[Role::out] = a_[Role::out], part[variant_tensor(0)] = a_[variant_tensor(kNsaGates)];
    if (Status s = step(NsaStep::gate, part); !s.ok()) return s;
    return a_.given(variant_tensor(kNsaReads)) ? count_reads() : Status::good();
  }

  Status count_reads() {
    Args part = queries();
    part[Role::q] = a_[Role::q], part[Role::used_k] = a_[Role::used_k];
    part[variant_tensor(0)] = blocks(), part[variant_tensor(1)] = a_[variant_tensor(kNsaReads)];
    return step(NsaStep::reads, part);
  }

  Status backward() {
    d_out_ = x_.d_out;
    if (s_.takes(NsaStep::gate_backward)) {
      Args part = queries();
      part[Role::q] = a_[variant_tensor(kNsaBranchOut)], part[Role::d_out] = a_[Role::d_out], part[Role::dq] = x_.d_out;
      part[variant_tensor(0)] = a_[variant_tensor(kNsaGates)];
      part[d_variant_tensor(0)] = a_[d_variant_tensor(kNsaGates)];
      if (Status s = step(NsaStep::gate_backward, part); !s.ok()) return s;
    }
    dq_ = s_.sums_apart ? x_.dq : a_[Role::dq];
    // The branches do not write rows outside every sequence.
    if (s_.sums_apart && s_.ragged)
      if (Status s = clear(dq_); !s.ok()) return s;
    if (s_.takes(NsaStep::selected_backward)) {
      Args part = branch_backward(Branch::selected, attention_to(kNsaSelect));
      part[variant_tensor(0)] = a_[variant_tensor(kNsaBlocks)];
      if (Status s = raw_backward(NsaStep::selected_backward, part, 0); !s.ok()) return s;
    }
    if (s_.takes(NsaStep::window_backward)) {
      const Args part = branch_backward(Branch::window, attention_to(kNsaWindow));
      if (Status s = raw_backward(NsaStep::window_backward, part, 2); !s.ok()) return s;
    }
    if (Status s = s_.takes(NsaStep::compressed_backward) ? compressed_backward() : clear_phi(); !s.ok()) return s;
    return s_.sums_apart ? round(dq_, a_[Role::dq]) : Status::good();
  }

  Args branch_backward(Branch b, Args part) const {
    part[Role::out] = out_of(b), part[Role::lse] = lse_of(b);
    part[Role::dq] = dq_, part[Role::d_lse] = a_[Role::d_lse];
    part[Role::d_out] = s_.nsa.only == Branch::all ? pick_heads(d_out_, int(b) * p_.heads_q, p_.heads_q)
                                                   : a_[Role::d_out];
    return part;
  }
  bool adds(NsaStep n) const { return plan_.sub_plans[size_t(s_.index(n))].problem.has(Option::accumulate); }

  // Computes sums `dk`, `dv` and converts them to their destinations, if any.
  Status keys_backward(NsaStep n, Args part, const Tensor& dk, const Tensor& dv, const Tensor& to_k,
                       const Tensor& to_v) {
    part[Role::dk] = dk, part[Role::dv] = dv;
    for (const Role r : {Role::dk, Role::dv})
      if (adds(n) && part.given(r))
        if (Status s = clear(part[r]); !s.ok()) return s;
    if (Status s = step(n, part); !s.ok()) return s;
    for (const auto& [from, to] : {std::pair(dk, to_k), std::pair(dv, to_v)})
      if (from.data && to.data && from.data != to.data)
        if (Status s = round(from, to); !s.ok()) return s;
    return Status::good();
  }
  Status raw_backward(NsaStep n, const Args& part, int first) {
    const Tensor &to_k = a_[d_variant_tensor(first)], &to_v = a_[d_variant_tensor(first + 1)];
    const auto sum = [&](const Tensor& to, const Tensor& apart) {
      return !to.data ? Tensor{} : s_.sums_apart ? apart : to;
    };
    return keys_backward(n, part, sum(to_k, x_.dk), sum(to_v, x_.dv), to_k, to_v);
  }

  // A selected or window branch alone: the selection has no gradient, so those of the compression are 0.
  Status clear_phi() {
    for (int n = kNsaPhiK; n < kNsaBranchOut; ++n)
      if (a_.given(d_variant_tensor(n)))
        if (Status s = clear(a_[d_variant_tensor(n)]); !s.ok()) return s;
    return Status::good();
  }

  Status compressed_backward() {
    if (Status s = compress(); !s.ok()) return s;
    const Args part = branch_backward(Branch::compressed, compressed_attention());
    const bool none = s_.nsa.phi == Phi::none, direct = none && !s_.sums_apart;
    const Tensor dk = direct ? a_[Role::dk] : x_.dk_compressed, dv = direct ? a_[Role::dv] : x_.dv_compressed;
    if (Status s = keys_backward(NsaStep::compressed_backward, part, dk, dv, none ? a_[Role::dk] : Tensor{},
                                 none ? a_[Role::dv] : Tensor{});
        !s.ok() || none)
      return s;
    if (Status s = through(NsaStep::compress_k_backward, Role::k, Role::dk, kNsaPhiK, dk); !s.ok()) return s;
    return through(NsaStep::compress_v_backward, Role::v, Role::dv, kNsaPhiV, dv);
  }
  Status through(NsaStep n, Role raw, Role to, int first_weight, const Tensor& d_compressed) {
    Args part = compression(raw, first_weight, {});
    part[Role::d_out] = d_compressed, part[Role::dq] = a_[to];
    bool any = a_.given(to);
    for (int w = 0; w < 5; ++w) {
      part[d_variant_tensor(w)] = a_[d_variant_tensor(first_weight + w)];
      any |= part.given(d_variant_tensor(w));
    }
    if (!any) return Status::good();
    // Tokens outside every sequence are 0 too.
    if (a_.given(to) && (s_.ragged || a_.given(Role::used_k)))
      if (Status s = clear(a_[to]); !s.ok()) return s;
    return step(n, part);
  }

  const Plan& plan_;
  const NsaShape s_;
  const Problem& p_;
  const Args& a_;
  Workspace ws_;
  const Stream stream_;
  const Each each_;
  Between x_{};
  Tensor d_out_{}, dq_{};
};

// Tensors between the steps have no address here. They are compact and fit, so a step is asked about the others alone.
Status fits(const Plan& plan, const Args& a) {
  const Status s = Run(plan, a, {}, nullptr, Each::fits).run();
  return s.ok() ? s : s.after(kWho, ": a part of it: ");
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  return of_whole(plan, Run(plan, a, ws, stream, Each::runs).run());
}

}  // namespace

extern const Backend nsa{.name = kWho, .supports = supports, .shape = shape, .run = run, .fits = fits};

}  // namespace attune
