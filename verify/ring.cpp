// SPDX-License-Identifier: Apache-2.0
#include "verify/ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/check.h"
#include "machine/cuda/runtime.h"

namespace attune {
namespace {

constexpr size_t kAlign = 256, kGuard = 4096;  // bytes
constexpr unsigned char kPoison = 0xFF;

std::string variant_text(const Variant& inner, const Shards& s) {
  std::string text = join("ring layout=", name(s.cut), " ranks=", s.ranks, " tokens=", s.tokens);
  const std::string_view rest = inner.text;
  if (!rest.empty()) text += join(" inner=", rest);
  return text;
}

Shards shards_of(const World& whole, const Cutting& c) {
  return {.cut = c.cut, .tokens = std::max(1, whole.args[Role::q].extent.seq), .ranks = c.ranks};
}

// Roles whose rows are tokens, roles that every rank has whole, and the rest, which a rank creates.
bool by_token(Role r) {
  const Role all[] = {Role::q, Role::k, Role::v, Role::out, Role::lse, Role::d_out, Role::d_lse, Role::dq, Role::dk,
                      Role::dv};
  return std::find(std::begin(all), std::end(all), r) != std::end(all);
}

void copy_row(const Tensor& from, int b, int s, const Tensor& to, int b2, int s2) {
  for (int h = 0; h < from.extent.head; ++h)
    std::memcpy(row_address(to, b2, s2, h), row_address(from, b, s, h),
                size_t(from.extent.dim) * size_t(size_of(from.dtype)));
}

// Rows of a shard and their tokens in the whole.
template <class F>
void each_row(const Shards& s, int rank, int batch, F f) {
  for (int b = 0; b < batch; ++b)
    for (int row = 0; row < s.count(rank); ++row) f(b, row, int(s.token(rank, row)));
}

// Lengths that do not divide, windows on either side, GQA, empty shards, every option that travels.
constexpr std::string_view kLines[] = {
    "forward f32 b1 h8/8 q64 k64 d16 causal",
    "forward f32 b2 h8/2 q65 k65 d32 causal",
    "forward f32 b1 h8/4 q37 k37 d32/16 full",
    "forward f32 b1 h8/8 q75 k75 d16 window9,0",
    "forward f32 b1 h8/8 q75 k75 d16 window40,0",
    "forward f32 b1 h8/8 q75 k75 d16 window5,11",
    "forward f32 b1 h8/8 q50 k50 d16 window0,0",
    "forward f32 b1 h8/8 q50 k50 d16 window12,*",
    "forward f32 b1 h8/8 q50 k50 d16 window*,7",
    "forward f32 b2 h8/8 q3 k3 d16 causal",
    "forward f32 b1 h8/1 q1 k1 d16 causal",
    "forward f32 b1 h8/2 q41 k41 d16 causal softcap sink",
    "forward f32 b1 h8/2 q41 k41 d16 causal alibi",
    "forward f32 b1 h8/2 q41 k41 d16 full dropout",
    "forward f32 b3 h8/2 q29 k29 d16 causal ragged",
    "forward f32 b3 h8/2 q29 k29 d16 full ragged",
    "forward f32 b3 h8/8 q29 k29 d16 window6,2 ragged",
    "forward f32 b2 h8/2 q128 k128 d16 causal blocks16x16x999",
    "forward f32 b1 h8/8 q96 k96 d16 window30,9 blocks8x8x9999",
    "forward f32 b2 h8/2 q129 k129 d16 causal blocks8x8x9999",
    "forward f32 b1 h8/8 q128 k128 d16 full blocks16x8x9999 softcap sink",
    "forward f32 b1 h8/8 q64 k64 d16 causal : dilated rates=1,2 segments=8,32",
    "forward f32 b2 h8/2 q77 k77 d16 causal : dilated rates=1,3,8 segments=16,40,200",
    "forward f32 b1 h8/8 q53 k53 d16 full : dilated rates=2,4 segments=10,64",
    "forward f32 b1 h8/4 q60 k60 d16 causal : dilated mode=headgroup rates=1,2,4 segments=8,16,64",
    "forward f16 b2 h8/2 q65 k65 d32 causal",
    "forward bf16 b2 h8/2 q65 k65 d32 causal",
};

Outcome failed(std::string why) { return {.verdict = Verdict::fail, .why = std::move(why)}; }

}  // namespace

Status whole_case(const Case& dense, Case& out) {
  out = dense;
  Ring ring{.shards = {.cut = Cut::ring, .tokens = dense.problem.len_q, .ranks = 1}, .inner = dense.problem.variant};
  if (ring.inner.text[0]) ring.shards.cut = Cut::ulysses;
  if (dense.problem.keys == KeySource::ragged) ring.shards.tokens = dense.problem.len_q * dense.problem.batch;
  if (Status s = assign(out.problem.variant, variant_text(ring.inner, ring.shards)); !s.ok()) return s;
  return valid(out.problem);
}

Status shard_problem(const World& whole, const Cutting& c, Problem& out) {
  const Shards shards = shards_of(whole, c);
  out = whole.problem;
  const Ring ring = ring_of(whole.problem);
  if (out.keys == KeySource::linear) out.len_q = out.len_k = std::max(1, shards.most());
  if (Status s = assign(out.variant, variant_text(ring.inner, shards)); !s.ok()) return s;
  return valid(out);
}

Shard::Shard(const World& whole, const Problem& p, const Shards& shards, int rank)
    : problem_(p), shards_(shards), rank_(rank) {
  const Outputs given = whole.outputs(false);
  args_.scale = whole.args.scale, args_.softcap = whole.args.softcap, args_.dropout = whole.args.dropout;
  const bool ragged = p.keys == KeySource::ragged;
  for (int n = 0; n < int(Role::count); ++n) {
    const Role r = Role(n);
    const bool output = std::find(given.roles.begin(), given.roles.end(), r) != given.roles.end();
    if (!given.args.given(r) || r == Role::cu_q || r == Role::cu_k || r == variant_tensor(kRingSequences)) continue;
    const Tensor& from = given.args[r];
    Extents e = from.extent;
    if (by_token(r)) e.seq = shards.count(rank);
    Owned& mine = output ? owned_.emplace_back(from.dtype, e, whole.variation.layout, whole.variation.pad,
                                               Owned::kUnwritten)
                         : owned_.emplace_back(from.dtype, e, whole.variation.layout, whole.variation.pad);
    args_[r] = mine.t;
    if (output) {
      outputs_.push_back(r);
    } else if (by_token(r)) {
      each_row(shards, rank, e.batch, [&](int b, int row, int t) { copy_row(from, b, t, mine.t, b, row); });
    } else {
      mine.each([&](int b, int s, int h, int d) { store(mine.t, b, s, h, d, load(from, b, s, h, d)); });
    }
  }
  if (!ragged) return;
  std::vector<int> all, here;
  for (int b = 0; b <= p.batch; ++b) {
    all.push_back(int(load(given.args[Role::cu_q], 0, 0, 0, b)));
    here.push_back(0);
    for (int n = 0; n < shards.pieces(); ++n) here.back() += shards.piece(rank, n).before(all.back());
  }
  add(Role::cu_q, DType::i32, {1, 1, 1, p.batch + 1}).set(here);
  add(Role::cu_k, DType::i32, {1, 1, 1, p.batch + 1}).set(here);
  add(variant_tensor(kRingSequences), DType::i32, {1, 1, 1, p.batch + 1}).set(all);
}

Owned& Shard::add(Role r, DType dtype, Extents e) {
  args_[r] = owned_.emplace_back(dtype, e).t;
  return owned_.back();
}

Status Shard::run(const Device& device, Communicator* comm) {
  Plan plan;
  if (Status s = Planner{.device = device}.plan(problem_, plan); !s.ok()) return s;
  Args args = args_;
  args.communicator = comm;
  if (Status s = check(problem_, args); !s.ok()) return s;
  if (Status s = check_values(problem_, args); !s.ok()) return s;
  if (Status s = device.kind == DeviceKind::cuda ? run_on_gpu(plan, args) : run_on_cpu(plan, args); !s.ok()) return s;
  for (const Role r : outputs_)
    for (const Owned& o : owned_)
      if (o.t.data == args_[r].data && !o.surroundings_intact())
        return Status::no("rank ", rank_, " writes outside ", name(r));
  return Status::good();
}

Status Shard::run_on_cpu(const Plan& plan, const Args& args) {
  std::vector<std::byte> memory(plan.workspace_bytes + 2 * kGuard + kAlign, std::byte{kPoison});
  const uintptr_t first = reinterpret_cast<uintptr_t>(memory.data()) + kGuard;
  std::byte* const data = reinterpret_cast<std::byte*>((first + kAlign - 1) / kAlign * kAlign);
  if (Status s = plan.backend->run(plan, args, {.data = data}, nullptr); !s.ok()) return s;
  const auto poison = [](std::byte b) { return b == std::byte{kPoison}; };
  if (!std::all_of(memory.data(), data, poison) ||
      !std::all_of(data + plan.workspace_bytes, memory.data() + memory.size(), poison))
    return Status::no("rank ", rank_, " writes outside its workspace");
  return Status::good();
}

Status Shard::run_on_gpu(const Plan& plan, const Args& args) {
  const auto padded = [](size_t bytes) { return size_t(round_up(int64_t(bytes), kAlign)); };
  std::vector<unsigned char> arena;
  std::vector<std::pair<Owned*, size_t>> places;
  for (Owned& o : owned_) {
    places.push_back({&o, arena.size()});
    arena.resize(padded(arena.size() + o.memory.size()), kPoison);
    std::copy(o.memory.begin(), o.memory.end(), arena.begin() + int64_t(places.back().second));
  }
  const size_t workspace = arena.size();
  const cuda::DeviceGuard use(plan.device.index);
  if (!use.status.ok()) return use.status;
  cuda::Memory gpu;
  cuda::OwnStream stream;
  if (Status s = gpu.allocate(plan.device.index, workspace + plan.workspace_bytes + kAlign); !s.ok()) return s;
  if (Status s = stream.open(plan.device.index); !s.ok()) return s;
  const std::vector<unsigned char> poison(plan.workspace_bytes, kPoison);
  if (Status s = cuda::copy_to(gpu.data(), arena.data(), workspace, stream.get()); !s.ok()) return s;
  if (Status s = cuda::copy_to(gpu.data() + workspace, poison.data(), poison.size(), stream.get()); !s.ok()) return s;
  Args there = args;
  for (Tensor& t : there.tensor)
    for (const auto& [o, at] : places)
      if (t.data && t.data == o->t.data) {
        t.data = gpu.data() + at + (static_cast<unsigned char*>(o->t.data) - o->memory.data());
        t.device = DeviceKind::cuda, t.device_index = plan.device.index;
        break;
      }
  const Status ran = plan.backend->run(plan, there, {.data = gpu.data() + workspace}, stream.get());
  const Status waited = cuda::copy_from(arena.data(), gpu.data(), workspace, stream.get());
  if (!ran.ok()) return ran;
  if (!waited.ok()) return waited;
  for (const auto& [o, at] : places)
    std::copy_n(arena.begin() + int64_t(at), o->memory.size(), o->memory.begin());
  return Status::good();
}

void Shard::join(Outputs& whole) const {
  for (const Role r : outputs_) {
    const Tensor &from = args_[r], &to = whole.args[r];
    if (by_token(r)) {
      each_row(shards_, rank_, from.extent.batch, [&](int b, int row, int t) { copy_row(from, b, row, to, b, t); });
      continue;
    }
    for (int h = 0; h < from.extent.head; ++h)  // this rank's contribution to d_sinks
      store(to, 0, 0, h, 0, load(from, 0, 0, h, 0) + (rank_ ? load(to, 0, 0, h, 0) : 0));
  }
}

std::vector<unsigned char> Shard::packed() const {
  std::vector<unsigned char> all;
  for (const Owned& o : owned_) all.insert(all.end(), o.memory.begin(), o.memory.end());
  return all;
}

void Shard::unpack(const std::vector<unsigned char>& all) {
  auto from = all.begin();
  for (Owned& o : owned_) std::copy_n(from, o.memory.size(), o.memory.begin()), from += int64_t(o.memory.size());
}

Outcome run_ranks(Trial& trial, const Cutting& c, const Device& device, std::vector<RankRun>& each, double seconds) {
  std::vector<Transport> transports;
  if (Status s = make_ranks(c.ranks, transports); !s.ok()) return failed(s.message);
  return run_over(trial, c, device, transports, each, seconds);
}

Outcome run_over(Trial& trial, const Cutting& c, const Device& device, std::span<const Transport> transports,
                 std::vector<RankRun>& each, double seconds) {
  Problem p;
  each.assign(size_t(c.ranks), {});
  std::list<Communicator> comms;
  for (const Transport& t : transports) comms.emplace_back(t, seconds);
  if (Status s = shard_problem(trial.world, c, p); !s.ok()) return failed(s.message);
  const Shards shards = shards_of(trial.world, c);
  std::list<Shard> all;
  for (int r = 0; r < c.ranks; ++r) all.emplace_back(trial.world, p, shards, r);
  std::vector<std::thread> threads;
  auto shard = all.begin();
  auto comm = comms.begin();
  for (int r = 0; r < c.ranks; ++r, ++shard, ++comm)
    threads.emplace_back([&device, &each, r, mine = &*shard, end = &*comm] {
      const auto start = std::chrono::steady_clock::now();
      each[size_t(r)].status = end->fail(mine->run(device, end));
      each[size_t(r)].seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      each[size_t(r)].traffic = end->traffic();
    });
  for (std::thread& t : threads) t.join();
  Outputs joined = trial.world.outputs(false);
  for (const RankRun& r : each)
    if (!r.status.ok()) return failed(r.status.message);
  for (const Shard& s : all) s.join(joined);
  return trial.judge(joined);
}

Outcome run_here(Trial& trial, const Cutting& c, const Device& device, Communicator& comm) {
  Problem p;
  if (Status s = shard_problem(trial.world, c, p); !s.ok()) return failed(s.message);
  const Shards shards = shards_of(trial.world, c);
  Shard mine(trial.world, p, shards, comm.rank());
  if (Status s = comm.fail(mine.run(device, &comm)); !s.ok()) return failed(s.message);
  const auto send = [&](int peer, bool receive, std::vector<unsigned char>& bytes) {
    const Transfer one{peer, receive, bytes.data(), bytes.size()};
    Communicator::Ticket ticket = 0;
    if (Status s = comm.start({&one, 1}, {}, ticket); !s.ok()) return s;
    return comm.finish(ticket, {});
  };
  if (comm.rank()) {
    std::vector<unsigned char> bytes = mine.packed();
    const Status s = send(0, false, bytes);
    return s.ok() ? Outcome{} : failed(s.message);
  }
  Outputs joined = trial.world.outputs(false);
  mine.join(joined);
  for (int r = 1; r < c.ranks; ++r) {
    Shard theirs(trial.world, p, shards, r);
    std::vector<unsigned char> bytes = theirs.packed();
    if (Status s = send(r, true, bytes); !s.ok()) return failed(s.message);
    theirs.unpack(bytes);
    theirs.join(joined);
  }
  return trial.judge(joined);
}

std::vector<Cut> all_cuts() { return {Cut::ring, Cut::zigzag, Cut::striped, Cut::ulysses}; }

std::span<const std::string_view> ring_lines() { return kLines; }

std::vector<Case> ring_cases(bool quick) {
  std::vector<Case> all;
  size_t n = 0;
  for (const std::string_view line : kLines)
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      std::string text(line);
      if (pass == Pass::backward) text.replace(0, text.find(' '), "backward");
      Case c;
      if (!parse(text, c).ok()) continue;
      if (c.problem.keys == KeySource::ragged) c.variation.lengths = Lengths::drawn;
      c.variation.d_lse = pass == Pass::backward && ++n % 2 == 0;
      c.quick = c.problem.dtype.q == DType::f32 && c.problem.len_q >= 41;
      if (!quick || c.quick) all.push_back(c);
    }
  return all;
}

}  // namespace attune
