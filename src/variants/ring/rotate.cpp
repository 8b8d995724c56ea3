// SPDX-License-Identifier: Apache-2.0
// Ring attention: keys and values rotate, queries stay. In step s a rank has the keys of rank r - s. It sends them on
// and requests the next ones before it attends, so transfers overlap with compute. Partial results merge in f32 (out,
// lse) by `accumulate`. A backward has the merged out and lse, with which every part yields exact gradients of the
// whole. dq accumulates locally; f32 dk and dv travel with the keys and return at the end. Steps in which no rank sees
// anything are skipped. Keys that no later rank sees are not sent, and pairs of pieces outside the band are not
// computed.
#include <cmath>

#include "variants/ring/gpu.h"
#include "machine/tensor_ops.h"
#include "variants/sub_plans.h"
#include "variants/ring/ring.h"
#include "variants/ring/calls.h"

namespace attune {
namespace {

using namespace ring_detail;

constexpr std::string_view kWho = "ring_rotate";

bool backward(const Problem& p) { return p.pass == Pass::backward; }
bool ragged(const Problem& p) { return p.keys == KeySource::ragged; }
// Keys and values, or their gradients, in transit: k before v, compact.
struct Keys { Tensor k{}, v{}; };

struct Buffers {
  std::byte* moving[2] = {};          // keys and values in transit
  float *mine = nullptr, *sum[2] = {};  // backward: for one step, and the sum that travels with the keys
  float *out = nullptr, *lse = nullptr, *dq = nullptr;  // if the caller's are not f32, or not given
  int64_t* positions = nullptr;
  int32_t* starts = nullptr;
  int32_t *list_begin = nullptr, *list_column = nullptr;  // block lists of one call
  std::byte* scratch = nullptr;       // for the parts, which run one after the other
};

// Rows of the block lists of all tokens, restricted to one piece.
int64_t list_rows(const Problem& p, const Shards& shards) {
  return ceil_div(shards.most(), blocks_in_rows(p.mask.blocks, shards).q);
}

Buffers carve(Workspace& ws, const Plan& plan, const Shards& shards) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(ragged(p) ? 1 : p.batch) * size_t(shards.most());
  const size_t key = size_t(p.heads_kv) * size_t(p.dim_qk + p.dim_v), sequences = size_t(ragged(p) ? p.batch : 1);
  const size_t table = size_t(shards.pieces()) * size_t(shards.ranks);
  Buffers buffers;
  for (auto& buffer : buffers.moving)
    if (shards.ranks > 1) buffer = ws.take<std::byte>(rows * key * size_t(size_of(p.dtype.kv)));
  buffers.positions = ws.take<int64_t>(table * size_t(shards.pieces()) * sequences * 2);
  if (ragged(p)) buffers.starts = ws.take<int32_t>(table * (sequences + 1));
  if (backward(p)) {
    if (shards.ranks > 1) buffers.mine = ws.take<float>(rows * key), buffers.sum[1] = ws.take<float>(rows * key);
    buffers.sum[0] = ws.take<float>(rows * key);
    if (p.dtype.grad != DType::f32) buffers.dq = ws.take<float>(rows * size_t(p.heads_q) * size_t(p.dim_qk));
  } else {
    if (p.dtype.out != DType::f32) buffers.out = ws.take<float>(rows * size_t(p.heads_q) * size_t(p.dim_v));
    buffers.lse = ws.take<float>(rows * size_t(p.heads_q));
  }
  if (p.mask.blocks.q) {
    buffers.list_begin = ws.take<int32_t>(size_t(p.batch) * size_t(p.heads_q) * size_t(list_rows(p, shards) + 1));
    buffers.list_column = ws.take<int32_t>(size_t(p.mask.blocks.bound));
  }
  size_t scratch = 0;
  for (const Plan& part : plan.sub_plans) scratch = std::max(scratch, part.workspace_bytes);
  buffers.scratch = ws.take<std::byte>(scratch);
  return buffers;
}

// One run of one rank.
class RingPass {
 public:
  RingPass(const Plan& plan, const Args& args, const RingCalls& calls, Communicator* comm, int rank,
           const Buffers& buffers, Stream stream)
      : plan_(plan), p_(plan.problem), a_(args), calls_(calls), s_(calls.shards()), comm_(comm), rank_(rank),
        buffers_(buffers), stream_(stream), lane_(lane_of(args, stream)) {
    for (int step = 1; step < s_.ranks; ++step)
      for (int r = 0; r < s_.ranks; ++r)
        if (calls_.sees(r, (r - step + s_.ranks) % s_.ranks)) last_step_ = step;
  }

  Status forward();
  Status backward();

 private:
  int owner(int step) const { return (rank_ - step + s_.ranks) % s_.ranks; }
  int next() const { return (rank_ + 1) % s_.ranks; }
  int before() const { return (rank_ - 1 + s_.ranks) % s_.ranks; }
  // Whether the keys of `of` travel to the rank of this step: it, or a later one, sees them.
  bool travels(int of, int step) const {
    for (; step <= last_step_; ++step)
      if (calls_.sees((of + step) % s_.ranks, of)) return true;
    return false;
  }
  Extents rows(int of, int heads, int dim) const { return {ragged(p_) ? 1 : p_.batch, s_.count(of), heads, dim}; }
  Keys keys_at(void* data, DType dtype, int of) const {
    Keys keys;
    keys.k = compact(data, dtype, rows(of, p_.heads_kv, p_.dim_qk), a_[Role::k]);
    void* const behind = static_cast<char*>(data) + elements(keys.k.extent) * size_t(size_of(dtype));
    keys.v = compact(behind, dtype, rows(of, p_.heads_kv, p_.dim_v), a_[Role::k]);
    return keys;
  }
  size_t bytes_of(int of, DType dtype) const {
    return elements(rows(of, p_.heads_kv, p_.dim_qk + p_.dim_v)) * size_t(size_of(dtype));
  }

  Status make_tables();
  Status send_keys(int step, Communicator::Ticket& ticket, bool& under_way);
  Status send_sums(int step, Communicator::Ticket& ticket);
  Status cut_lists(const RingCall& call, int of) const;
  Args part_args(const RingCall& call, int of, const Keys& keys) const;
  Status run(const Problem& part, const Args& x) const;
  Status attend(int step, const Keys& keys);
  Status differentiate(int step, const Keys& keys, const Keys& sums);

  const Plan& plan_;
  const Problem& p_;
  const Args& a_;
  const RingCalls& calls_;
  const Shards s_;
  Communicator* const comm_;
  const int rank_;
  const Buffers buffers_;
  const Stream stream_;
  const CopyLane lane_;
  int last_step_ = 0;
  Tensor out_{}, lse_{}, dq_{};
};

Status RingPass::make_tables() {
  if (calls_.dilated()) return Status::good();
  const ShardTables tables{.shards = s_, .rank = rank_, .batch = ragged(p_) ? p_.batch : 1, .left = left_of(p_.mask),
                           .right = right_of(p_.mask),
                           .sequences = a_.row<const int32_t>(variant_tensor(kRingSequences)),
                           .positions = buffers_.positions, .starts = buffers_.starts};
  if (lane_.device == DeviceKind::cuda) return cuda::fill_tables(tables, lane_.index, stream_);
  for (int64_t n = 0; n < tables.items(); ++n) tables.fill(n);
  return Status::good();
}

// Starts receiving the keys of the next step and sending those of this one.
Status RingPass::send_keys(int step, Communicator::Ticket& ticket, bool& under_way) {
  Transfer both[2];
  size_t count = 0;
  if (const int of = owner(step); travels(of, step + 1)) {
    if (!step) {
      const Keys own = keys_at(buffers_.moving[0], p_.dtype.kv, of);
      if (Status s = convert(a_[Role::k], own.k, stream_); !s.ok()) return s;
      if (Status s = convert(a_[Role::v], own.v, stream_); !s.ok()) return s;
    }
    both[count++] = {next(), 0, buffers_.moving[step % 2], bytes_of(of, p_.dtype.kv)};
  }
  if (const int of = owner(step + 1); travels(of, step + 1))
    both[count++] = {before(), 1, buffers_.moving[(step + 1) % 2], bytes_of(of, p_.dtype.kv)};
  under_way = count > 0;
  return count ? comm_->start({both, count}, lane_, ticket) : Status::good();
}

// The gradients of this step's keys go to the next rank that has them, or home after the last step. In return comes the
// partial sum for the next step's keys, or for this rank's own.
Status RingPass::send_sums(int step, Communicator::Ticket& ticket) {
  const bool home = step == last_step_;
  const int to = home ? owner(step) : next(), from = home ? (rank_ + step) % s_.ranks : before();
  const int incoming = home ? rank_ : owner(step + 1);
  const Transfer both[2] = {{to, 0, buffers_.sum[step % 2], bytes_of(owner(step), DType::f32)},
                            {from, 1, buffers_.sum[(step + 1) % 2], bytes_of(incoming, DType::f32)}};
  return comm_->start(both, lane_, ticket);
}

// Restricts the block lists to the pieces of a call. Calls are sequential, so they share one buffer.
Status RingPass::cut_lists(const RingCall& call, int of) const {
  if (!p_.mask.blocks.q) return Status::good();
  const Tensor& begin = a_[Role::block_begin];
  const Piece mine = s_.piece(rank_, call.q_piece), theirs = s_.piece(of, call.k_piece);
  const Blocks size = p_.mask.blocks, rows = call.problem.mask.blocks;
  const int32_t first = int32_t(theirs.first / size.k);
  const ListCut cut{.begin = static_cast<const int32_t*>(begin.data), .stride_batch = begin.stride.batch,
                    .stride_head = begin.stride.head, .column = a_.row<const int32_t>(Role::block_column),
                    .bound = size.bound, .batches = begin.extent.batch, .heads = begin.extent.head,
                    .row = int32_t(mine.first / size.q), .rows = int32_t(ceil_div(mine.count, rows.q)),
                    .first = first, .last = first + int32_t(ceil_div(theirs.count, rows.k)),
                    .to_begin = buffers_.list_begin, .to_column = buffers_.list_column};
  if (lane_.device == DeviceKind::cuda) return cuda::cut_lists(cut, lane_.index, stream_);
  for (int n = 0; n < cut.batches * cut.heads; ++n) cut.fill(n);
  return Status::good();
}

Args RingPass::part_args(const RingCall& call, int of, const Keys& keys) const {
  Args x;
  x.scale = a_.scale, x.softcap = a_.softcap, x.dropout = a_.dropout;
  x[Role::q] = call.q.of(a_[Role::q]);
  x[Role::k] = call.k.of(keys.k), x[Role::v] = call.k.of(keys.v);
  x[Role::out] = call.q.of(out_), x[Role::lse] = call.q.of(lse_);
  x[Role::slopes] = a_[Role::slopes], x[Role::seed] = a_[Role::seed];
  const int batch = ragged(p_) ? p_.batch : 1;
  const ShardTables tables{.shards = s_, .batch = batch};
  if (call.problem.mask.align == Align::absolute)
    x[Role::positions] = compact(buffers_.positions + tables.pair(call.q_piece, of, call.k_piece) * batch * 2,
                                 DType::i64, {batch, 1, 1, 2}, a_[Role::q]);
  const auto numbers = [&](int32_t* data, const Extents& e) { return compact(data, DType::i32, e, a_[Role::q]); };
  if (ragged(p_)) {
    x[Role::cu_q] = numbers(buffers_.starts + tables.start(rank_, call.q_piece), {1, 1, 1, batch + 1});
    x[Role::cu_k] = numbers(buffers_.starts + tables.start(of, call.k_piece), {1, 1, 1, batch + 1});
  }
  if (p_.mask.blocks.q) {
    const Extents lists = a_[Role::block_begin].extent;
    const int rows = int(ceil_div(call.q.count, call.problem.mask.blocks.q));
    x[Role::block_begin] = numbers(buffers_.list_begin, {lists.batch, 1, lists.head, rows + 1});
    x[Role::block_column] = numbers(buffers_.list_column, {1, 1, 1, p_.mask.blocks.bound});
  }
  return x;
}

Status RingPass::run(const Problem& part, const Args& x) const {
  for (const Plan& plan : plan_.sub_plans)
    if (plan.problem == part) return run_part(plan, x, buffers_.scratch, stream_);
  return Status::failure(Code::internal, "has no plan for '", name(part), "'");
}

Status RingPass::attend(int step, const Keys& keys) {
  const int of = owner(step);
  return calls_.each(rank_, of, [&](const RingCall& call) {
    if (Status s = cut_lists(call, of); !s.ok()) return s;
    Args x = part_args(call, of, keys);
    if (call.first) x[Role::sinks] = a_[Role::sinks];
    return run(call.problem, x);
  });
}

Status RingPass::forward() {
  out_ = buffers_.out ? compact(buffers_.out, DType::f32, rows(rank_, p_.heads_q, p_.dim_v), a_[Role::q])
                      : a_[Role::out];
  lse_ = a_.given(Role::lse) ? a_[Role::lse]
                             : compact(buffers_.lse, DType::f32, rows(rank_, p_.heads_q, 1), a_[Role::q]);
  if (Status s = make_tables(); !s.ok()) return s;
  if (calls_.dilated()) {  // a row may be in no segment's selection
    if (Status s = fill(out_, 0.f, stream_); !s.ok()) return s;
    if (Status s = fill(lse_, -INFINITY, stream_); !s.ok()) return s;
  }
  Keys keys{a_[Role::k], a_[Role::v]};
  for (int step = 0; step <= last_step_; ++step) {
    Communicator::Ticket ticket = 0;
    bool under_way = false;
    if (step < last_step_)
      if (Status s = send_keys(step, ticket, under_way); !s.ok()) return s;
    if (Status s = attend(step, keys); !s.ok()) return s;
    if (under_way)
      if (Status s = comm_->finish(ticket, lane_); !s.ok()) return s;
    if (step < last_step_) keys = keys_at(buffers_.moving[(step + 1) % 2], p_.dtype.kv, owner(step + 1));
  }
  return buffers_.out ? convert(out_, a_[Role::out], stream_) : Status::good();
}

Status RingPass::differentiate(int step, const Keys& keys, const Keys& sums) {
  const int of = owner(step);
  if (Status s = fill(sums.k, 0.f, stream_); !s.ok()) return s;
  if (Status s = fill(sums.v, 0.f, stream_); !s.ok()) return s;
  return calls_.each(rank_, of, [&](const RingCall& call) {
    if (Status s = cut_lists(call, of); !s.ok()) return s;
    Args x = part_args(call, of, keys);
    x[Role::d_out] = call.q.of(a_[Role::d_out]), x[Role::dq] = call.q.of(dq_);
    if (a_.given(Role::d_lse)) x[Role::d_lse] = call.q.of(a_[Role::d_lse]);
    x[Role::dk] = call.k.of(sums.k), x[Role::dv] = call.k.of(sums.v);
    Problem part = call.problem;
    if (call.first && a_.given(Role::d_sinks)) x[Role::sinks] = a_[Role::sinks], x[Role::d_sinks] = a_[Role::d_sinks];
    else part.clear(Option::sink);
    return run(part, x);
  });
}

Status RingPass::backward() {
  out_ = a_[Role::out], lse_ = a_[Role::lse];
  dq_ = buffers_.dq ? compact(buffers_.dq, DType::f32, rows(rank_, p_.heads_q, p_.dim_qk), a_[Role::q]) : a_[Role::dq];
  if (Status s = make_tables(); !s.ok()) return s;
  if (Status s = fill(dq_, 0.f, stream_); !s.ok()) return s;
  if (a_.given(Role::d_sinks))
    if (Status s = fill(a_[Role::d_sinks], 0.f, stream_); !s.ok()) return s;
  Keys keys{a_[Role::k], a_[Role::v]};
  Communicator::Ticket moving = 0, summing = 0;
  for (int step = 0; step <= last_step_; ++step) {
    const int of = owner(step);
    const Keys sums = keys_at(buffers_.sum[step % 2], DType::f32, of);
    bool under_way = false;
    if (step < last_step_)
      if (Status s = send_keys(step, moving, under_way); !s.ok()) return s;
    // The partial sum is still in transit while this step's contribution is computed.
    const bool any = !step || calls_.sees(rank_, of);
    const Keys share = step ? keys_at(buffers_.mine, DType::f32, of) : sums;
    if (any)
      if (Status s = differentiate(step, keys, share); !s.ok()) return s;
    if (step) {
      if (Status s = comm_->finish(summing, lane_); !s.ok()) return s;
      for (const auto& [from, to] : {std::pair{&share.k, &sums.k}, {&share.v, &sums.v}})
        if (any)
          if (Status s = add(*from, *to, stream_); !s.ok()) return s;
    }
    if (under_way)
      if (Status s = comm_->finish(moving, lane_); !s.ok()) return s;
    if (last_step_)
      if (Status s = send_sums(step, summing); !s.ok()) return s;
    if (step < last_step_) keys = keys_at(buffers_.moving[(step + 1) % 2], p_.dtype.kv, owner(step + 1));
  }
  if (last_step_)
    if (Status s = comm_->finish(summing, lane_); !s.ok()) return s;
  const Keys own = keys_at(buffers_.sum[last_step_ ? (last_step_ + 1) % 2 : 0], DType::f32, rank_);
  if (Status s = convert(own.k, a_[Role::dk], stream_); !s.ok()) return s;
  if (Status s = convert(own.v, a_[Role::dv], stream_); !s.ok()) return s;
  return buffers_.dq ? convert(dq_, a_[Role::dq], stream_) : Status::good();
}

Status supports(const Problem& p, const Device&) {
  if (word(p.variant) != "ring") return not_variant(kWho, "ring", p);
  if (ring_of(p).shards.cut == Cut::ulysses)
    return Status::unsupported(kWho, ": does not support layout ulysses, which moves heads");
  return Status::good();
}

Status shape(Plan& plan, const Planner& planner) {
  const RingCalls calls(plan.problem);
  for (const Problem& part : calls.parts())
    if (Status s = plan_part(kWho, part, planner, plan); !s.ok()) return s;
  Workspace ws;
  carve(ws, plan, calls.shards());
  plan.workspace_bytes = ws.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const RingCalls calls(plan.problem);
  Communicator* comm = nullptr;
  int rank = 0;
  if (Status s = joined(kWho, plan.problem, calls.shards(), a, comm, rank); !s.ok()) return comm ? comm->fail(s) : s;
  RingPass pass(plan, a, calls, comm, rank, carve(ws, plan, calls.shards()), stream);
  Status s = of_whole(plan, backward(plan.problem) ? pass.backward() : pass.forward());
  return comm ? comm->fail(std::move(s)) : s;
}

}  // namespace

extern const Backend ring_rotate{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
