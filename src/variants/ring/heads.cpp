// SPDX-License-Identifier: Apache-2.0
// Attention over ranks by heads (DeepSpeed-Ulysses): every rank receives the whole sequence for some heads, attends
// like a single rank, and returns the rows. A pass has two all-to-all exchanges and no steps in between, so everything
// that one rank supports works: block lists, dilated, any backend. With fewer KV heads than ranks, ranks share a KV
// head, and its gradients are summed in f32.
#include "machine/tensor_ops.h"
#include "variants/sub_plans.h"
#include "variants/ring/ring.h"

namespace attune {
namespace {

using namespace ring_detail;

constexpr std::string_view kWho = "ring_heads";

bool backward(const Problem& p) { return p.pass == Pass::backward; }
bool shares_keys(const Problem& p, const Shards& s) { return p.heads_kv < s.ranks; }

// The heads of a rank.
struct Heads {
  int count = 1, all = 1, ranks = 1;
  int first(int rank) const { return int(int64_t(rank) * all / ranks); }
};
Heads query_heads(const Problem& p, const Shards& s) { return {p.heads_q / s.ranks, p.heads_q, s.ranks}; }
Heads key_heads(const Problem& p, const Shards& s) { return {std::max(1, p.heads_kv / s.ranks), p.heads_kv, s.ranks}; }

Problem part_of(const Problem& p, const Ring& ring) {
  Problem part = whole_of(p, ring);
  part.heads_q = query_heads(p, ring.shards).count, part.heads_kv = key_heads(p, ring.shards).count;
  if (backward(p) && shares_keys(p, ring.shards)) part.dtype.grad = DType::f32;
  return part;
}

// A tensor that is redistributed: by rows in the caller's memory, by heads in the workspace.
struct Moving {
  Role role;
  Heads heads;
  DType dtype;
  int dim;
  bool optional = false;
};
struct Movings {
  Moving in[7], out[3];
  int ins = 0, outs = 0;
};

Movings movings(const Problem& p, const Shards& s) {
  const Heads q = query_heads(p, s), k = key_heads(p, s);
  Movings m;
  const auto in = [&](const Moving& x) { m.in[m.ins++] = x; };
  const auto out = [&](const Moving& x) { m.out[m.outs++] = x; };
  in({Role::q, q, p.dtype.q, p.dim_qk}), in({Role::k, k, p.dtype.kv, p.dim_qk}), in({Role::v, k, p.dtype.kv, p.dim_v});
  if (!backward(p)) {
    out({Role::out, q, p.dtype.out, p.dim_v}), out({Role::lse, q, DType::f32, 1, true});
    return m;
  }
  in({Role::out, q, p.dtype.out, p.dim_v}), in({Role::lse, q, DType::f32, 1});
  in({Role::d_out, q, p.dtype.out, p.dim_v}), in({Role::d_lse, q, DType::f32, 1, true});
  const DType grad = shares_keys(p, s) ? DType::f32 : p.dtype.grad;
  out({Role::dq, q, grad, p.dim_qk}), out({Role::dk, k, grad, p.dim_qk}), out({Role::dv, k, grad, p.dim_v});
  return m;
}

struct Buffers {
  std::byte *in[7] = {}, *out[3] = {};  // by heads: all tokens of this rank's heads
  std::byte *stage = nullptr;           // pieces for the other ranks, then from them
  float* sums = nullptr;                // for KV heads shared by ranks: dk, then dv
  std::byte* scratch = nullptr;
};

Buffers carve(Workspace& ws, const Plan& plan, const Ring& ring) {
  const Problem& p = plan.problem;
  const Shards& s = ring.shards;
  const Movings all = movings(p, s);
  const size_t batch = size_t(p.keys == KeySource::ragged ? 1 : p.batch), tokens = batch * size_t(s.tokens);
  const size_t rows = batch * size_t(s.most());
  const auto bytes = [](const Moving& m, size_t of) {
    return of * size_t(m.heads.count) * size_t(m.dim) * size_t(size_of(m.dtype));
  };
  Buffers buffers;
  Workspace sent, taken;
  for (int n = 0; n < all.ins; ++n) {
    buffers.in[n] = ws.take<std::byte>(bytes(all.in[n], tokens));
    sent.take<std::byte>(bytes(all.in[n], rows) * size_t(s.ranks));
  }
  for (int n = 0; n < all.outs; ++n) {
    buffers.out[n] = ws.take<std::byte>(bytes(all.out[n], tokens));
    taken.take<std::byte>(bytes(all.out[n], rows) * size_t(s.ranks));
  }
  buffers.stage = ws.take<std::byte>(std::max(sent.used, taken.used));
  if (backward(p) && shares_keys(p, s))
    buffers.sums = ws.take<float>(rows * size_t(p.heads_kv) * size_t(std::max(p.dim_qk, p.dim_v)));
  buffers.scratch = ws.take<std::byte>(plan.sub_plans[0].workspace_bytes);
  return buffers;
}

class HeadExchange {
 public:
  HeadExchange(const Plan& plan, const Args& args, const Ring& ring, Communicator* comm, int rank,
               const Buffers& buffers, Stream stream)
      : plan_(plan), p_(plan.problem), a_(args), s_(ring.shards), comm_(comm), rank_(rank), buffers_(buffers),
        stream_(stream), lane_(lane_of(args, stream)), batch_(p_.keys == KeySource::ragged ? 1 : p_.batch) {}

  Status run() {
    const Movings all = movings(p_, s_);
    Args x;
    x.scale = a_.scale, x.softcap = a_.softcap;
    Workspace stage{.data = buffers_.stage};
    for (int n = 0; n < all.ins; ++n)
      if (const Moving& m = all.in[n]; a_.given(m.role) || !m.optional)
        if (Status s = give(m, x[m.role] = whole(m, buffers_.in[n]), stage); !s.ok()) return s;
    if (Status s = exchange(); !s.ok()) return s;
    for (int n = 0; n < all.outs; ++n)
      if (const Moving& m = all.out[n]; a_.given(m.role) || !m.optional) x[m.role] = whole(m, buffers_.out[n]);
    if (Status s = by_head(x); !s.ok()) return s;
    if (Status s = run_part(plan_.sub_plans[0], x, buffers_.scratch, stream_); !s.ok()) return s;
    stage.used = 0;
    std::byte* pieces[3] = {};
    for (int n = 0; n < all.outs; ++n)
      if (const Moving& m = all.out[n]; x.given(m.role)) pieces[n] = take_back(m, x[m.role], stage);
    if (Status s = exchange(); !s.ok()) return s;
    for (int n = 0; n < all.outs; ++n)
      if (const Moving& m = all.out[n]; x.given(m.role))
        if (Status s = place(m, x[m.role], pieces[n]); !s.ok()) return s;
    return Status::good();
  }

 private:
  Tensor whole(const Moving& m, void* data) const {
    return compact(data, m.dtype, {batch_, s_.tokens, m.heads.count, m.dim}, a_[Role::q]);
  }
  Extents piece(const Moving& m) const { return {batch_, s_.count(rank_), m.heads.count, m.dim}; }
  size_t row_bytes(const Moving& m) const { return size_t(m.heads.count) * size_t(m.dim) * size_t(size_of(m.dtype)); }
  // Row b of a compact tensor with `rows` rows each, starting at row `first`.
  static void* at(const Tensor& t, int b, int64_t first, size_t row_bytes) {
    return static_cast<char*>(t.data) + (int64_t(b) * t.extent.seq + first) * int64_t(row_bytes);
  }
  void message(int peer, bool receive, void* data, size_t bytes) {
    if (bytes) list_.push_back({peer, receive, data, bytes});
  }

  // Distributes this rank's rows: the other ranks' heads go to them, with space for their rows in return.
  Status give(const Moving& m, const Tensor& to, Workspace& stage) {
    const Tensor& from = a_[m.role];
    const size_t one = row_bytes(m);
    for (int r = 0; r < s_.ranks; ++r) {
      const Tensor heads = pick_heads(from, m.heads.first(r), m.heads.count);
      if (r == rank_) {
        if (Status s = convert(heads, pick_rows(to, s_.piece(r, 0).first, s_.count(r)), stream_); !s.ok()) return s;
        continue;
      }
      const Tensor packed = compact(stage.take<std::byte>(elements(piece(m)) * size_t(size_of(m.dtype))), m.dtype,
                                    piece(m), from);
      if (Status s = convert(heads, packed, stream_); !s.ok()) return s;
      for (int b = 0; b < batch_; ++b) {
        message(r, false, at(packed, b, 0, one), one * size_t(s_.count(rank_)));
        message(r, true, at(to, b, s_.piece(r, 0).first, one), one * size_t(s_.count(r)));
      }
    }
    return Status::good();
  }

  // The inverse: the other ranks' rows are contiguous already. Returns where this rank's rows will arrive.
  std::byte* take_back(const Moving& m, const Tensor& from, Workspace& stage) {
    std::byte* const first = stage.take<std::byte>(elements(piece(m)) * size_t(size_of(m.dtype)) * size_t(s_.ranks));
    const size_t one = row_bytes(m);
    for (int r = 0; r < s_.ranks; ++r)
      for (int b = 0; r != rank_ && b < batch_; ++b) {
        message(r, false, at(from, b, s_.piece(r, 0).first, one), one * size_t(s_.count(r)));
        message(r, true, at(piece_of(m, r, first), b, 0, one), one * size_t(s_.count(rank_)));
      }
    return first;
  }
  Tensor piece_of(const Moving& m, int r, std::byte* first) const {
    return compact(first + elements(piece(m)) * size_t(size_of(m.dtype)) * size_t(r), m.dtype, piece(m), a_[Role::q]);
  }

  Status place(const Moving& m, const Tensor& own, std::byte* pieces) {
    const bool adds = buffers_.sums && m.role != Role::dq && backward(p_);
    Tensor to = a_[m.role];
    if (adds) {
      to = compact(buffers_.sums, DType::f32, to.extent, to);
      if (Status s = fill(to, 0.f, stream_); !s.ok()) return s;
    }
    for (int r = 0; r < s_.ranks; ++r) {
      const Tensor heads = pick_heads(to, m.heads.first(r), m.heads.count);
      const Tensor from = r == rank_ ? pick_rows(own, s_.piece(r, 0).first, s_.count(r)) : piece_of(m, r, pieces);
      if (Status s = adds ? add(from, heads, stream_) : convert(from, heads, stream_); !s.ok()) return s;
    }
    return adds ? convert(to, a_[m.role], stream_) : Status::good();
  }

  // Per-head arguments, and lists, which cover the whole sequence.
  Status by_head(Args& x) {
    const Heads heads = query_heads(p_, s_);
    const auto mine = [&](Role r) {
      if (!a_.given(r)) return;
      x[r] = a_[r].extent.head == 1 ? a_[r] : pick_heads(a_[r], heads.first(rank_), heads.count);
    };
    for (const Role r : {Role::slopes, Role::sinks, Role::block_begin, Role::block_begin_k}) mine(r);
    x[Role::block_column] = a_[Role::block_column], x[Role::block_row_k] = a_[Role::block_row_k];
    if (p_.keys == KeySource::ragged) x[Role::cu_q] = x[Role::cu_k] = a_[variant_tensor(kRingSequences)];
    if (!a_.given(Role::d_sinks)) return Status::good();
    // The other heads do not belong to this rank.
    if (Status s = fill(a_[Role::d_sinks], 0.f, stream_); !s.ok()) return s;
    x[Role::d_sinks] = pick_heads(a_[Role::d_sinks], heads.first(rank_), heads.count);
    return Status::good();
  }

  Status exchange() {
    Communicator::Ticket ticket = 0;
    if (list_.empty()) return Status::good();
    if (Status s = comm_->start(list_, lane_, ticket); !s.ok()) return s;
    list_.clear();
    return comm_->finish(ticket, lane_);
  }

  const Plan& plan_;
  const Problem& p_;
  const Args& a_;
  const Shards s_;
  Communicator* const comm_;
  const int rank_;
  const Buffers buffers_;
  const Stream stream_;
  const CopyLane lane_;
  const int batch_;
  std::vector<Transfer> list_{};  // few long messages: one per rank, tensor and batch row
};

Status supports(const Problem& p, const Device&) {
  if (word(p.variant) != "ring") return not_variant(kWho, "ring", p);
  if (ring_of(p).shards.cut != Cut::ulysses)
    return Status::unsupported(kWho, ": requires layout ulysses, not ", name(ring_of(p).shards.cut));
  return Status::good();
}

Status shape(Plan& plan, const Planner& planner) {
  const Ring ring = ring_of(plan.problem);
  if (Status s = plan_part(kWho, part_of(plan.problem, ring), planner, plan); !s.ok()) return s;
  Workspace ws;
  carve(ws, plan, ring);
  plan.workspace_bytes = ws.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Ring ring = ring_of(plan.problem);
  Communicator* comm = nullptr;
  int rank = 0;
  Status s = joined(kWho, plan.problem, ring.shards, a, comm, rank);
  if (s.ok()) s = of_whole(plan, HeadExchange(plan, a, ring, comm, rank, carve(ws, plan, ring), stream).run());
  return comm ? comm->fail(std::move(s)) : s;
}

}  // namespace

extern const Backend ring_heads{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
