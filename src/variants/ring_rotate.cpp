// Ring attention: keys and values go round, queries stay. In step s a rank has the keys of rank r - s; it sends them on
// and asks for the next before it attends, so that the transfer runs beside the work. Partial results meet in f32 (out,
// lse) by `accumulate`; a backward has the merged out and lse, with which every part gives exact gradients of the whole,
// dq adds up at home and f32 dk, dv follow the keys and return at the end. Steps in which no rank sees anything are not
// made, keys that nobody further on sees are not sent, and pairs of pieces that the band parts are not computed.
#include "machine/cuda/ring.h"
#include "machine/ops.h"
#include "variants/ring.h"

namespace attune {
namespace {

using namespace ring_detail;

constexpr std::string_view kWho = "ring_rotate";

bool backward(const Problem& p) { return p.pass == Pass::backward; }
bool ragged(const Problem& p) { return p.keys == KeySource::ragged; }
// Of a full mask nobody asks where tokens stand, unless a score or a random number depends on it.
bool positioned(const Problem& p) {
  return p.mask.kind != MaskKind::full || p.has(Option::alibi) || p.has(Option::dropout);
}

// Parts of a plan, two for each mask. Forward: the first of a chain and those that accumulate. Backward: those without
// sinks and the one that gives their gradient. The sink is one more part of the softmax: the first run has it.
int part_number(int mask, bool second) { return 2 * mask + second; }

Problem part_of(const Problem& p, const Shards& shards, const Mask& mask, bool second) {
  Problem part = p;
  part.variant = {};
  part.mask = mask;
  part.mask.blocks = p.mask.blocks;
  if (!positioned(p)) part.mask.align = Align::bottom_right;
  int most = 1;
  for (int r = 0; r < shards.ranks; ++r)
    for (int n = 0; n < shards.pieces(); ++n) most = std::max(most, shards.piece(r, n).count);
  part.len_q = part.len_k = std::min(p.len_q, most);
  if (backward(p)) {
    part.dtype.grad = DType::f32;
    part.set(Option::accumulate);
    if (!second) part.clear(Option::sink);
  } else {
    part.dtype.out = DType::f32;
    if (second) part.set(Option::accumulate), part.clear(Option::sink);
  }
  return part;
}

// Keys and values, or their gradients, as they travel: k before v, compact.
struct Keys { Tensor k{}, v{}; };

struct Room {
  std::byte* moving[2] = {};          // keys and values on their way
  float *mine = nullptr, *sum[2] = {};  // backward: of one step, and what travels with the keys
  float *out = nullptr, *lse = nullptr, *dq = nullptr;  // where the caller's are not f32, or not given
  int64_t* positions = nullptr;
  int32_t* starts = nullptr;
  std::byte* scratch = nullptr;       // of the parts, which run one after the other
};

Room carve(Workspace& ws, const Plan& plan, const Shards& shards) {
  const Problem& p = plan.problem;
  const size_t rows = size_t(ragged(p) ? 1 : p.batch) * size_t(shards.most());
  const size_t key = size_t(p.heads_kv) * size_t(p.dim_qk + p.dim_v), sequences = size_t(ragged(p) ? p.batch : 1);
  const size_t table = size_t(shards.pieces()) * size_t(shards.ranks);
  Room room;
  for (auto& buffer : room.moving)
    if (shards.ranks > 1) buffer = ws.take<std::byte>(rows * key * size_t(size_of(p.dtype.kv)));
  room.positions = ws.take<int64_t>(table * size_t(shards.pieces()) * sequences * 2);
  if (ragged(p)) room.starts = ws.take<int32_t>(table * (sequences + 1));
  if (backward(p)) {
    if (shards.ranks > 1) room.mine = ws.take<float>(rows * key), room.sum[1] = ws.take<float>(rows * key);
    room.sum[0] = ws.take<float>(rows * key);
    if (p.dtype.grad != DType::f32) room.dq = ws.take<float>(rows * size_t(p.heads_q) * size_t(p.dim_qk));
  } else {
    if (p.dtype.out != DType::f32) room.out = ws.take<float>(rows * size_t(p.heads_q) * size_t(p.dim_v));
    room.lse = ws.take<float>(rows * size_t(p.heads_q));
  }
  size_t scratch = 0;
  for (const Plan& part : plan.parts) scratch = std::max(scratch, part.workspace_bytes);
  room.scratch = ws.take<std::byte>(scratch);
  return room;
}

// One run of one rank.
class Turn {
 public:
  Turn(const Plan& plan, const Args& args, const Shards& shards, Communicator* comm, int rank, const Room& room,
       Stream stream)
      : plan_(plan), p_(plan.problem), a_(args), s_(shards), comm_(comm), rank_(rank), room_(room), stream_(stream),
        lane_(lane_of(args, stream)), left_(left_of(p_.mask)), right_(right_of(p_.mask)) {
    for (int step = 1; step < s_.ranks; ++step)
      for (int r = 0; r < s_.ranks; ++r)
        if (sees(r, (r - step + s_.ranks) % s_.ranks)) last_step_ = step;
  }

  Status forward();
  Status backward();

 private:
  int owner(int step) const { return (rank_ - step + s_.ranks) % s_.ranks; }
  int next() const { return (rank_ + 1) % s_.ranks; }
  int before() const { return (rank_ - 1 + s_.ranks) % s_.ranks; }
  bool sees(int rank, int other) const {
    for (int q = 0; q < s_.pieces(); ++q)
      for (int k = 0; k < s_.pieces(); ++k)
        if (sight(s_, left_, right_, s_.piece(rank, q), s_.piece(other, k)).any) return true;
    return false;
  }
  // Whether the keys of `of` are brought to the rank that has them in this step: it, or one after it, sees them.
  bool travels(int of, int step) const {
    for (; step <= last_step_; ++step)
      if (sees((of + step) % s_.ranks, of)) return true;
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
  Args part_args(int q_piece, int of, int k_piece, const Keys& keys) const;
  template <class Each>
  Status each_pair(int of, Each each) const;
  Status attend(int step, const Keys& keys);
  Status differentiate(int step, const Keys& keys, const Keys& sums);

  const Plan& plan_;
  const Problem& p_;
  const Args& a_;
  const Shards s_;
  Communicator* const comm_;
  const int rank_;
  const Room room_;
  const Stream stream_;
  const Lane lane_;
  const int64_t left_, right_;
  int last_step_ = 0;
  Tensor out_{}, lse_{}, dq_{};
};

Status Turn::make_tables() {
  const ShardTables tables{.shards = s_, .rank = rank_, .batch = ragged(p_) ? p_.batch : 1, .left = left_,
                           .right = right_, .sequences = a_.row<const int32_t>(variant_tensor(kRingSequences)),
                           .positions = room_.positions, .starts = room_.starts};
  if (lane_.device == DeviceKind::cuda) return cuda::fill_tables(tables, lane_.index, stream_);
  for (int64_t n = 0; n < tables.items(); ++n) tables.fill(n);
  return Status::good();
}

// Starts to bring the keys of the next step, and to send on those of this one.
Status Turn::send_keys(int step, Communicator::Ticket& ticket, bool& under_way) {
  Transfer both[2];
  size_t count = 0;
  if (const int of = owner(step); travels(of, step + 1)) {
    if (!step) {
      const Keys own = keys_at(room_.moving[0], p_.dtype.kv, of);
      if (Status s = convert(a_[Role::k], own.k, stream_); !s.ok()) return s;
      if (Status s = convert(a_[Role::v], own.v, stream_); !s.ok()) return s;
    }
    both[count++] = {next(), 0, room_.moving[step % 2], bytes_of(of, p_.dtype.kv)};
  }
  if (const int of = owner(step + 1); travels(of, step + 1))
    both[count++] = {before(), 1, room_.moving[(step + 1) % 2], bytes_of(of, p_.dtype.kv)};
  under_way = count > 0;
  return count ? comm_->start({both, count}, lane_, ticket) : Status::good();
}

// The gradients of this step's keys go to the rank that has them next, after the last step home; the sum so far of the
// next step's keys, or of this rank's own, comes in return.
Status Turn::send_sums(int step, Communicator::Ticket& ticket) {
  const bool home = step == last_step_;
  const int to = home ? owner(step) : next(), from = home ? (rank_ + step) % s_.ranks : before();
  const int incoming = home ? rank_ : owner(step + 1);
  const Transfer both[2] = {{to, 0, room_.sum[step % 2], bytes_of(owner(step), DType::f32)},
                            {from, 1, room_.sum[(step + 1) % 2], bytes_of(incoming, DType::f32)}};
  return comm_->start(both, lane_, ticket);
}

Args Turn::part_args(int q_piece, int of, int k_piece, const Keys& keys) const {
  Args x;
  x.scale = a_.scale, x.softcap = a_.softcap, x.dropout = a_.dropout;
  const int q_row = s_.first_row(rank_, q_piece), q_count = s_.piece(rank_, q_piece).count;
  const int k_row = s_.first_row(of, k_piece), k_count = s_.piece(of, k_piece).count;
  x[Role::q] = pick_rows(a_[Role::q], q_row, q_count);
  x[Role::k] = pick_rows(keys.k, k_row, k_count), x[Role::v] = pick_rows(keys.v, k_row, k_count);
  x[Role::out] = pick_rows(out_, q_row, q_count), x[Role::lse] = pick_rows(lse_, q_row, q_count);
  x[Role::slopes] = a_[Role::slopes], x[Role::seed] = a_[Role::seed];
  const int batch = ragged(p_) ? p_.batch : 1;
  const ShardTables tables{.shards = s_, .batch = batch};
  if (positioned(p_))
    x[Role::positions] = compact(room_.positions + tables.pair(q_piece, of, k_piece) * batch * 2, DType::i64,
                                 {batch, 1, 1, 2}, a_[Role::q]);
  if (ragged(p_)) {
    x[Role::cu_q] = compact(room_.starts + tables.start(rank_, q_piece), DType::i32, {1, 1, 1, batch + 1}, a_[Role::q]);
    x[Role::cu_k] = compact(room_.starts + tables.start(of, k_piece), DType::i32, {1, 1, 1, batch + 1}, a_[Role::q]);
  }
  return x;
}

// each(q_piece, k_piece, mask, first): the pairs that see each other; of its own keys a piece sees itself first.
template <class Each>
Status Turn::each_pair(int of, Each each) const {
  for (int q = 0; q < s_.pieces(); ++q)
    for (int n = 0; n < s_.pieces(); ++n) {
      const int k = (q + n) % s_.pieces();
      const bool first = of == rank_ && !n;
      const Piece mine = s_.piece(rank_, q), theirs = s_.piece(of, k);
      const Sight at = sight(s_, left_, right_, mine, theirs);
      if (!mine.count || !theirs.count || (!at.any && !first)) continue;
      if (Status s = each(q, k, at.mask, first); !s.ok()) return s;
    }
  return Status::good();
}

Status Turn::attend(int step, const Keys& keys) {
  const int of = owner(step);
  return each_pair(of, [&](int q, int k, int mask, bool first) {
    Args x = part_args(q, of, k, keys);
    if (first) x[Role::sinks] = a_[Role::sinks];
    return run_part(kWho, plan_.parts[size_t(part_number(mask, !first))], x, room_.scratch, stream_);
  });
}

Status Turn::forward() {
  out_ = room_.out ? compact(room_.out, DType::f32, rows(rank_, p_.heads_q, p_.dim_v), a_[Role::q]) : a_[Role::out];
  lse_ = a_.given(Role::lse) ? a_[Role::lse]
                             : compact(room_.lse, DType::f32, rows(rank_, p_.heads_q, 1), a_[Role::q]);
  if (Status s = make_tables(); !s.ok()) return s;
  Keys keys{a_[Role::k], a_[Role::v]};
  for (int step = 0; step <= last_step_; ++step) {
    Communicator::Ticket ticket = 0;
    bool under_way = false;
    if (step < last_step_)
      if (Status s = send_keys(step, ticket, under_way); !s.ok()) return s;
    if (Status s = attend(step, keys); !s.ok()) return s;
    if (under_way)
      if (Status s = comm_->finish(ticket, lane_); !s.ok()) return s;
    if (step < last_step_) keys = keys_at(room_.moving[(step + 1) % 2], p_.dtype.kv, owner(step + 1));
  }
  return room_.out ? convert(out_, a_[Role::out], stream_) : Status::good();
}

Status Turn::differentiate(int step, const Keys& keys, const Keys& sums) {
  const int of = owner(step);
  if (Status s = fill(sums.k, 0.f, stream_); !s.ok()) return s;
  if (Status s = fill(sums.v, 0.f, stream_); !s.ok()) return s;
  return each_pair(of, [&](int q, int k, int mask, bool first) {
    Args x = part_args(q, of, k, keys);
    const int q_row = s_.first_row(rank_, q), q_count = s_.piece(rank_, q).count;
    const int k_row = s_.first_row(of, k), k_count = s_.piece(of, k).count;
    x[Role::d_out] = pick_rows(a_[Role::d_out], q_row, q_count), x[Role::dq] = pick_rows(dq_, q_row, q_count);
    if (a_.given(Role::d_lse)) x[Role::d_lse] = pick_rows(a_[Role::d_lse], q_row, q_count);
    x[Role::dk] = pick_rows(sums.k, k_row, k_count), x[Role::dv] = pick_rows(sums.v, k_row, k_count);
    const bool sinks = first && a_.given(Role::d_sinks);
    if (sinks) x[Role::sinks] = a_[Role::sinks], x[Role::d_sinks] = a_[Role::d_sinks];
    return run_part(kWho, plan_.parts[size_t(part_number(mask, sinks))], x, room_.scratch, stream_);
  });
}

Status Turn::backward() {
  out_ = a_[Role::out], lse_ = a_[Role::lse];
  dq_ = room_.dq ? compact(room_.dq, DType::f32, rows(rank_, p_.heads_q, p_.dim_qk), a_[Role::q]) : a_[Role::dq];
  if (Status s = make_tables(); !s.ok()) return s;
  if (Status s = fill(dq_, 0.f, stream_); !s.ok()) return s;
  if (a_.given(Role::d_sinks))
    if (Status s = fill(a_[Role::d_sinks], 0.f, stream_); !s.ok()) return s;
  Keys keys{a_[Role::k], a_[Role::v]};
  Communicator::Ticket moving = 0, summing = 0;
  for (int step = 0; step <= last_step_; ++step) {
    const int of = owner(step);
    const Keys sums = keys_at(room_.sum[step % 2], DType::f32, of);
    bool under_way = false;
    if (step < last_step_)
      if (Status s = send_keys(step, moving, under_way); !s.ok()) return s;
    // The sum so far is still on its way while this step's share is made.
    const bool any = !step || sees(rank_, of);
    const Keys share = step ? keys_at(room_.mine, DType::f32, of) : sums;
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
    if (step < last_step_) keys = keys_at(room_.moving[(step + 1) % 2], p_.dtype.kv, owner(step + 1));
  }
  if (last_step_)
    if (Status s = comm_->finish(summing, lane_); !s.ok()) return s;
  const Keys own = keys_at(room_.sum[last_step_ ? (last_step_ + 1) % 2 : 0], DType::f32, rank_);
  if (Status s = convert(own.k, a_[Role::dk], stream_); !s.ok()) return s;
  if (Status s = convert(own.v, a_[Role::dv], stream_); !s.ok()) return s;
  return room_.dq ? convert(dq_, a_[Role::dq], stream_) : Status::good();
}

Status supports(const Problem& p, const Device&) {
  if (word(p.variant) != "ring") return Status::no(kWho, ": is not asked for");
  if (ring_of(p).shards.cut == Cut::ulysses) return Status::no(kWho, ": layout ulysses moves heads, not keys");
  return Status::good();
}

Status shape(Plan& plan, const Planner& planner) {
  const Problem& p = plan.problem;
  const Shards shards = ring_of(p).shards;
  Mask masks[2];
  const int count = part_masks(p.mask, shards, masks);
  for (int n = 0; n < count; ++n)
    for (const bool second : {false, true}) {
      if (second && backward(p) && !p.has(Option::sink)) {
        plan.parts.push_back(plan.parts.back());  // the same where there is nothing more to give
        continue;
      }
      const Problem part = part_of(p, shards, masks[n], second);
      Planner inner{.device = planner.device, .rules = planner.rules};
      if (Status s = inner.plan(part, plan.parts.emplace_back()); !s.ok()) return Status::no(kWho, ": ", s.message);
    }
  Workspace ws;
  carve(ws, plan, shards);
  plan.workspace_bytes = ws.used;
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace ws, Stream stream) {
  const Shards shards = ring_of(plan.problem).shards;
  Communicator* comm = nullptr;
  int rank = 0;
  if (Status s = joined(kWho, plan.problem, shards, a, comm, rank); !s.ok()) return comm ? comm->fail(s) : s;
  Turn turn(plan, a, shards, comm, rank, carve(ws, plan, shards), stream);
  Status s = backward(plan.problem) ? turn.backward() : turn.forward();
  return comm ? comm->fail(std::move(s)) : s;
}

}  // namespace

extern const Backend ring_rotate{.name = kWho, .supports = supports, .shape = shape, .run = run};

}  // namespace attune
