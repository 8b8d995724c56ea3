// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/ring_run.h"

#include <algorithm>
#include <cstring>
#include <system_error>

namespace attune {
namespace {

constexpr double kPatienceOfRanks = 600;  // seconds; a rank may wait while all others use the cores
constexpr unsigned char kPoison = 0xFF;   // NaN in every floating-point type

constexpr Role kByToken[] = {Role::q,     Role::k,     Role::v,  Role::out, Role::lse,
                             Role::d_out, Role::d_lse, Role::dq, Role::dk,  Role::dv};

Strides strides_of(const Extents& e, Layout layout) {
  const int64_t dim = e.dim, rows = int64_t(e.seq) * e.head * dim;
  return layout == Layout::bhsd ? Strides{rows, dim, e.seq * dim} : Strides{rows, e.head * dim, dim};
}

}  // namespace

bool is_ring(const Problem& p) { return word(p.variant) == "ring" && ring_of(p).shards.ranks > 1; }

Problem whole_problem(const Problem& p) { return word(p.variant) == "ring" ? whole_of(p, ring_of(p)) : p; }

Status can_time_ring(const Problem& p, const Device& device, Mode mode) {
  if (device.kind == DeviceKind::cuda && mode == Mode::graph)
    return Status::unsupported("not built: ranks are timed warm or cold, not in graphs");
  if (p.keys != KeySource::linear) return Status::unsupported("not built: ranks are timed over linear keys only");
  if (p.has(Option::accumulate)) return Status::unsupported("not built: ranks are timed without accumulate");
  if (p.has(Option::sink) && p.pass == Pass::backward)
    return Status::unsupported(
        "not built: ranks are timed without sinks in a backward, because they would sum their gradients");
  return Status::good();
}

Device rank_device(const Device& d, const Problem& p) {
  Device one = d;
  if (d.kind == DeviceKind::cpu) one.units = std::max(1, d.units / ring_of(p).shards.ranks);
  return one;
}

RingRun::RingRun(Plan plan, const Args& whole, const std::vector<Role>& outputs, Layout layout, const Args* there,
                 Stream stream)
    : plan_(std::move(plan)), shards_(ring_of(plan_.problem).shards), whole_(whole), stream_(stream) {
  for (const Role r : kByToken) {
    if (!whole.given(r)) continue;
    (std::find(outputs.begin(), outputs.end(), r) == outputs.end() ? inputs_ : outputs_).push_back(r);
  }
  for (int n = 0; n < shards_.ranks; ++n) {
    Rank& rank = ranks_.emplace_back();
    rank.here = whole, rank.args = there ? *there : whole;  // tensors that are not sharded are shared by all ranks
    if (!gpu()) rank.workspace = std::make_unique<Memory>(plan_.workspace_bytes);
    for (const std::vector<Role>* roles : {&inputs_, &outputs_})
      for (const Role r : *roles) {
        Extents e = whole[r].extent;
        e.seq = shards_.count(n);
        Tensor& t = rank.here[r];
        t.extent = e, t.stride = strides_of(e, layout);
        t.data = rank.memory.emplace_back(span_bytes(t)).data();
        rank.args[r] = t;
      }
  }
}

Status RingRun::open_gpu() {
  const int index = plan_.device.index;
  if (Status s = begun_.open(index); !s.ok()) return s;
  for (Rank& rank : ranks_) {
    if (Status s = rank.stream.open(index); !s.ok()) return s;
    if (Status s = rank.end.open(index); !s.ok()) return s;
    for (const std::vector<Role>* roles : {&inputs_, &outputs_})
      for (const Role r : *roles) {
        Tensor& t = rank.args[r];
        if (Status s = rank.on_gpu.emplace_back().allocate(index, span_bytes(t)); !s.ok()) return s;
        t.data = rank.on_gpu.back().data(), t.device = DeviceKind::cuda, t.device_index = index;
      }
    if (Status s = rank.on_gpu.emplace_back().allocate(index, plan_.workspace_bytes); !s.ok()) return s;
  }
  return Status::good();
}

Status RingRun::open() {
  if (gpu())
    if (Status s = open_gpu(); !s.ok()) return s;
  std::vector<Transport> transports;
  if (Status s = make_ranks(shards_.ranks, transports); !s.ok()) return s;
  size_t n = 0;
  for (Rank& rank : ranks_) {
    rank.comm = std::make_unique<Communicator>(transports[n++], kPatienceOfRanks);
    rank.args.communicator = rank.comm.get();
  }
  try {
    team_.emplace(ranks_.size(), [this](size_t n) {
      Rank& rank = *std::next(ranks_.begin(), ptrdiff_t(n));
      return rank.comm->fail(work(rank));  // a failure must reach the others, or they would wait
    });
  } catch (const std::system_error& e) {
    return Status::no("ring: ", shards_.ranks, " ranks need one thread each, and not all can be started: ", e.what());
  }
  return Status::good();
}

Status RingRun::work(Rank& rank) {
  if (!gpu()) return plan_.backend->run(plan_, rank.args, Workspace{rank.workspace->data()}, nullptr);
  const cuda::DeviceGuard use(plan_.device.index);
  if (!use.status.ok()) return use.status;
  void* const stream = rank.stream.get();
  if (Status s = begun_.before(stream); !s.ok()) return s;
  if (Status s = plan_.backend->run(plan_, rank.args, Workspace{rank.on_gpu.back().data()}, stream); !s.ok()) return s;
  return rank.end.set(stream);
}

bool RingRun::run() {
  if (!status_.ok()) return false;  // a broken group stays broken
  if (gpu() && !(status_ = begun_.set(stream_)).ok()) return false;
  status_ = team_->run();
  for (const Rank& rank : ranks_)
    if (gpu() && status_.ok()) status_ = rank.end.before(stream_);
  return status_.ok();
}

template <class F>
void RingRun::each_row(int rank, Role role, F f) const {
  const Tensor& all = whole_[role];
  const Tensor& mine = std::next(ranks_.begin(), rank)->here[role];
  const size_t bytes = size_t(all.extent.dim) * size_t(size_of(all.dtype));
  for (int b = 0; b < mine.extent.batch; ++b)
    for (int row = 0; row < mine.extent.seq; ++row)
      for (int h = 0; h < mine.extent.head; ++h)
        f(row_address(all, b, shards_.token(rank, row), h), row_address(mine, b, row, h), bytes);
}

Status RingRun::cut() {
  for (int n = 0; n < shards_.ranks; ++n) {
    for (const Role r : inputs_) each_row(n, r, [](char* all, char* mine, size_t b) { std::memcpy(mine, all, b); });
    for (const Role r : outputs_) each_row(n, r, [](char*, char* mine, size_t b) { std::memset(mine, kPoison, b); });
  }
  if (!gpu()) return Status::good();
  for (const Rank& rank : ranks_)
    for (const std::vector<Role>* roles : {&inputs_, &outputs_})
      for (const Role r : *roles) {
        const Tensor& from = rank.here[r];
        if (Status s = cuda::copy_to(rank.args[r].data, from.data, span_bytes(from), stream_); !s.ok()) return s;
      }
  return Status::good();
}

Status RingRun::gather() {
  for (const Rank& rank : ranks_)
    for (const Role r : outputs_) {
      const Tensor& to = rank.here[r];
      if (!gpu()) continue;
      if (Status s = cuda::copy_from(to.data, rank.args[r].data, span_bytes(to), stream_); !s.ok()) return s;
    }
  for (int n = 0; n < shards_.ranks; ++n)
    for (const Role r : outputs_) each_row(n, r, [](char* all, char* mine, size_t b) { std::memcpy(all, mine, b); });
  return Status::good();
}

uint64_t RingRun::sent() const {
  uint64_t bytes = 0;
  for (const Rank& rank : ranks_) bytes += rank.comm ? rank.comm->traffic().sent : 0;
  return bytes;
}

}  // namespace attune
