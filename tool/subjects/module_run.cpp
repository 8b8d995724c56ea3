// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/module_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <list>

#include "attune/attune.h"
#include "core/variant/nsa.h"
#include "machine/cuda/copies.h"
#include "machine/cuda/events.h"
#include "machine/cuda/runtime.h"
#include "core/variant/ring.h"
#include "modules/settings.h"
#include "tool/subjects/team.h"

namespace attune {
namespace {

constexpr unsigned char kPoison = 0xFF;  // NaN in every floating-point type

Status said(int failed) { return failed ? Status{Code(attune_last_code()), attune_last_error()} : Status::good(); }

int64_t count(const attune_tensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
DType dtype_of(const attune_tensor& t) {
  return t.dtype.bits == 32 ? DType::f32 : t.dtype.code == 4 ? DType::bf16 : DType::f16;
}
std::byte* address(const attune_tensor& t) { return static_cast<std::byte*>(t.data) + t.byte_offset; }

// The elements of a parameter or its gradient, contiguous on the host.
struct Flat {
  std::vector<std::byte> bytes{};
  Tensor t{};

  Flat() = default;
  explicit Flat(const attune_tensor& like) : bytes(size_t(count(like)) * size_t(size_of(dtype_of(like)))) {
    t = {.data = bytes.data(), .dtype = dtype_of(like), .extent = {1, 1, 1, int(count(like))}};
  }
};

// Values that a module reads or writes: on the host, and on the module's device; on a CPU both are the same.
struct Values {
  Tensor here{};
  std::byte* there = nullptr;
  attune_tensor given{};
};

// Sums of squares over elements: of the f32 result, and of the differences from it.
struct Distance {
  double size = 0, off = 0;
  void add(double got, double want) { size += want * want, off += (got - want) * (got - want); }
};

template <class F>
void each(const Tensor& t, F f) {
  for (int b = 0; b < t.extent.batch; ++b)
    for (int s = 0; s < t.extent.seq; ++s)
      for (int d = 0; d < t.extent.dim; ++d) f(b, s, d);
}

}  // namespace

struct ModuleRun::Parts {
  std::string line{};
  ModulePlace place{};
  Settings set{};
  Pass pass = Pass::forward;
  bool is_rank = false;
  attune_module* module = nullptr;
  attune_module_sizes needs{};
  std::vector<Memory> memory{};
  std::list<cuda::Memory> on_gpu{};
  Values x{}, memory_in{}, out{}, d_out{}, dx{}, d_memory{};
  Values seed{};           // of dropout, [2]
  int64_t seed_shape = 2;
  std::list<std::array<int64_t, 3>> shapes{};
  attune_module_args args{};

  // Over ranks: their modules, in threads of this process. This one then has the tensors of all tokens and no module.
  Shards shards{};
  std::vector<std::unique_ptr<Parts>> ranks{};
  std::vector<attune_communicator*> communicators{};
  bool runs_backward = false;  // what the team does next
  cuda::Mark begun{}, ended{};  // on a GPU: the timed stream before a call, and the stream of a rank after it
  cuda::OwnStream stream{};     // of a rank
  std::unique_ptr<Team> team{};

  ~Parts() {
    team.reset();
    for (attune_communicator* c : communicators) attune_communicator_destroy(c);
    attune_module_destroy(module);
  }
  attune_module* named() const { return ranks.empty() ? module : ranks[0]->module; }  // all ranks have the same
  bool gpu() const { return place.gpu >= 0; }
  bool backward() const { return pass == Pass::backward; }
  size_t room() const { return size_t(backward() ? std::max(needs.forward, needs.backward) : needs.forward_only); }
  size_t values(int rows) const {  // bytes of a tensor of so many tokens
    return size_t(set.batch) * size_t(rows) * size_t(set.embed) * size_t(size_of(set.dtype));
  }
  static size_t bytes(const Values& v) {
    const Extents& e = v.here.extent;
    return size_t(e.batch) * size_t(e.seq) * size_t(e.dim) * size_t(size_of(v.here.dtype));
  }
  Status make() {
    attune_module_options options{};
    options.size = sizeof options, options.device = place.word.c_str();
    if (Status s = read_settings(line, set); !s.ok()) return s;
    if (Problem p; set.kind != ModuleKind::feed_forward && !is_rank &&
                   attention_of(set, set.attention, set.len, p).ok() && word(p.variant) == "ring")
      return make_ranks(p);
    if (Status s = said(attune_module_create(line.c_str(), &options, &module)); !s.ok()) return s;
    needs.size = sizeof needs;
    if (Status s = said(attune_module_measure(module, &needs)); !s.ok() || !backward()) return s;
    attune_tensor gradient{};  // requesting the first allocates all of them
    return said(attune_module_gradient(module, attune_module_parameter_name(module, 0), &gradient));
  }

  // One module for each rank. Its tokens differ by at most two from those of the line.
  Status make_ranks(const Problem& p) {
    shards = ring_of(p).shards;
    for (int n = 0; n < shards.ranks; ++n) {
      Settings one = set;
      one.len = shards.count(n);
      Parts& rank = *ranks.emplace_back(std::make_unique<Parts>());
      rank.line = name(one), rank.place = place, rank.pass = pass, rank.is_rank = true;
      if (gpu()) {
        if (Status s = rank.stream.open(place.gpu); !s.ok()) return s;
        if (Status s = rank.ended.open(place.gpu); !s.ok()) return s;
        rank.place.stream = rank.stream.get();
      }
      if (Status s = rank.make(); !s.ok()) return s;
      needs.tape += rank.needs.tape, needs.forward += rank.needs.forward, needs.backward += rank.needs.backward;
      needs.forward_only += rank.needs.forward_only;
    }
    // The same attention without ranks, for the module in f32: the part of its line behind the head dims.
    const std::string whole = name(whole_of(p, ring_of(p)));
    const size_t dims = whole.find(" d");
    set.attention = whole.substr(whole.find(' ', dims + 1) + 1);
    return set.len = shards.tokens, Status::good();
  }
  // Copies rows from the tensor of all tokens to those of the ranks, or back.
  Status deal(Values Parts::*which, bool back) {
    const size_t row = size_t(set.embed) * size_t(size_of(set.dtype));
    for (int n = 0; n < shards.ranks && (this->*which).there; ++n) {
      Parts& rank = *ranks[size_t(n)];
      const Values& mine = rank.*which;
      if (Status s = back ? rank.fetch(mine) : Status::good(); !s.ok()) return s;
      for (int b = 0; b < set.batch; ++b)
        for (int s = 0; s < shards.count(n); ++s) {
          void* const of_all = row_address((this->*which).here, b, shards.token(n, s), 0);
          void* const of_rank = row_address(mine.here, b, s, 0);
          std::memcpy(back ? of_all : of_rank, back ? of_rank : of_all, row);
        }
      if (Status s = back ? Status::good() : rank.send(mine); !s.ok()) return s;
    }
    return Status::good();
  }
  Status open_ranks() {
    communicators.resize(ranks.size());
    if (Status s = said(attune_ranks_create(int32_t(ranks.size()), communicators.data())); !s.ok()) return s;
    for (size_t n = 0; n < ranks.size(); ++n) {
      if (Status s = ranks[n]->open(); !s.ok()) return s;
      ranks[n]->args.communicator = communicators[n];
    }
    team = std::make_unique<Team>(ranks.size(), [this](size_t n) { return call_rank(*ranks[n]); });
    return gpu() ? begun.open(place.gpu) : Status::good();
  }
  // On a GPU each rank has a stream, which continues after `begun`; the timed stream continues after all of them.
  Status call_rank(Parts& rank) {
    if (!gpu()) return rank.call(runs_backward);
    const cuda::DeviceGuard use(place.gpu);
    if (!use.status.ok()) return use.status;
    if (Status s = begun.before(rank.place.stream); !s.ok()) return s;
    if (Status s = rank.call(runs_backward); !s.ok()) return s;
    return rank.ended.set(rank.place.stream);
  }
  Status call_ranks(bool is_backward) {
    runs_backward = is_backward;
    if (Status s = gpu() ? begun.set(place.stream) : Status::good(); !s.ok()) return s;
    if (Status s = team->run(); !s.ok()) return s;
    for (const auto& rank : ranks)
      if (Status s = gpu() ? rank->ended.before(place.stream) : Status::good(); !s.ok()) return s;
    return Status::good();
  }
  Status call(bool is_backward) {
    if (!ranks.empty()) return call_ranks(is_backward);
    const auto run = is_backward ? attune_module_backward : attune_module_forward;
    return said(run(module, &args, place.stream));
  }
  Status open();
  Status poison_results() {
    for (const Values* v : {backward() ? &dx : &out, &d_memory})
      if (v->there && ranks.empty())
        if (Status s = poison(v->there, bytes(*v)); !s.ok()) return s;
    for (const auto& rank : ranks)
      if (Status s = rank->poison_results(); !s.ok()) return s;
    if (!backward() || !module) return Status::good();
    return each_parameter([&](const char* name) {
      attune_tensor g{};
      if (Status s = said(attune_module_gradient(module, name, &g)); !s.ok()) return s;
      return poison(address(g), size_t(count(g)) * sizeof(float));
    });
  }
  // The gradient of a parameter, summed over ranks.
  Status read_gradient(const char* name, Flat& to) const {
    for (size_t n = 0; n < std::max<size_t>(ranks.size(), 1); ++n) {
      attune_tensor g{};
      if (Status s = said(attune_module_gradient(ranks.empty() ? module : ranks[n]->module, name, &g)); !s.ok())
        return s;
      if (to.bytes.empty()) to = Flat(g);
      Flat one(g);
      if (Status s = read(g, one); !s.ok()) return s;
      for (int i = 0; i < one.t.extent.dim; ++i)
        store(to.t, 0, 0, 0, i, (n ? load(to.t, 0, 0, 0, i) : 0) + load(one.t, 0, 0, 0, i));
    }
    return Status::good();
  }

  // Allocates memory on the module's device.
  Status take(size_t bytes, std::byte*& out_to) {
    if (!gpu()) return out_to = memory.emplace_back(bytes).data(), Status::good();
    if (Status s = on_gpu.emplace_back().allocate(place.gpu, bytes); !s.ok()) return s;
    return out_to = on_gpu.back().data(), Status::good();
  }
  Status to_module(std::byte* to, const void* from, size_t bytes) const {
    if (gpu()) return cuda::copy_to(to, from, bytes, place.stream);
    if (to != from) std::memcpy(to, from, bytes);
    return Status::good();
  }
  Status from_module(void* to, const std::byte* from, size_t bytes) const {
    if (gpu()) return cuda::copy_from(to, from, bytes, place.stream);
    if (to != from) std::memcpy(to, from, bytes);
    return Status::good();
  }
  Status poison(std::byte* to, size_t bytes) const {
    if (gpu()) return cuda::fill(to, kPoison, bytes, place.stream);
    std::memset(to, kPoison, bytes);
    return Status::good();
  }
  Status send(const Values& v) {
    if (!ranks.empty()) {
      const Status s = deal(&Parts::x, false);
      return s.ok() ? deal(&Parts::d_out, false) : s;
    }
    return to_module(v.there, v.here.data, bytes(v));
  }
  Status fetch(const Values& v) const { return from_module(v.here.data, v.there, bytes(v)); }
  Status read(const attune_tensor& from, Flat& to) const {
    return from_module(to.bytes.data(), address(from), to.bytes.size());
  }
  // The seed of dropout, the same for every run of the line.
  Status open_seed() {
    constexpr int64_t kSeed[2] = {7, 0};
    if (Status s = take(sizeof kSeed, seed.there); !s.ok()) return s;
    seed.given.data = seed.there, seed.given.ndim = 1, seed.given.axes = "n", seed.given.shape = &seed_shape;
    seed.given.device.type = gpu() ? 2 : 1, seed.given.device.id = gpu() ? place.gpu : 0;
    seed.given.dtype.code = 0, seed.given.dtype.bits = 64, seed.given.dtype.lanes = 1;
    args.seed = &seed.given;
    return to_module(seed.there, kSeed, sizeof kSeed);
  }
  // Calls f(name) for every parameter, up to the first failure.
  template <class F>
  Status each_parameter(F f) const {
    const char* name = nullptr;
    for (int n = 0; (name = attune_module_parameter_name(named(), n)) != nullptr; ++n)
      if (Status s = f(name); !s.ok()) return s;
    return Status::good();
  }
};

ModuleRun::ModuleRun() : parts_(std::make_unique<Parts>()) {}
ModuleRun::~ModuleRun() = default;

Status ModuleRun::make(const BenchRow& row, const ModulePlace& place) {
  parts_->place = place, parts_->pass = row.problem.pass, parts_->line = row.module;
  return parts_->make();
}

Status ModuleRun::make_f32(const ModuleRun& narrow) {
  const Parts& from = *narrow.parts_;
  parts_->place = from.place, parts_->pass = from.pass;
  Settings in_f32 = from.set;
  in_f32.dtype = DType::f32;
  parts_->line = name(in_f32);
  if (Status s = parts_->make(); !s.ok()) return s;
  return from.each_parameter([&](const char* name) {
    attune_tensor have{}, want{};
    if (Status s = said(attune_module_parameter(from.named(), name, &have)); !s.ok()) return s;
    if (Status s = said(attune_module_parameter(parts_->module, name, &want)); !s.ok()) return s;
    if (count(have) != count(want)) return Status::no("in f32 the module's ", name, " has a different size");
    Flat a(have), b(want);
    if (Status s = from.read(have, a); !s.ok()) return s;
    for (int i = 0; i < a.t.extent.dim; ++i) store(b.t, 0, 0, 0, i, load(a.t, 0, 0, 0, i));
    return parts_->to_module(address(want), b.bytes.data(), b.bytes.size());
  });
}

double ModuleRun::tensor_bytes() const {
  const Parts& p = *parts_;
  return double(p.values(p.set.len)) * (p.backward() ? 4 : 2) + double(p.values(p.set.memory)) * (p.backward() ? 2 : 1);
}

double ModuleRun::bytes() const {
  const Parts& p = *parts_;
  return double(p.room() + (p.backward() ? p.needs.tape : 0)) + tensor_bytes();
}

Status ModuleRun::open() { return parts_->open(); }

Status ModuleRun::Parts::open() {
  Parts& p = *this;
  const Settings& s = p.set;
  const auto value = [&](Values& v, const attune_tensor*& to, int rows) {
    const size_t bytes = p.values(rows);
    v.here = {.data = p.memory.emplace_back(bytes).data(), .dtype = s.dtype};
    v.here.extent = {s.batch, rows, 1, s.embed}, v.here.stride = {int64_t(rows) * s.embed, s.embed, 0};
    std::memset(v.here.data, 0, bytes);
    v.there = static_cast<std::byte*>(v.here.data);
    if (p.gpu() && p.ranks.empty())
      if (Status bad = p.take(bytes, v.there); !bad.ok()) return bad;
    v.given.data = v.there, v.given.ndim = 3, v.given.axes = "bsd";
    v.given.shape = p.shapes.emplace_back(std::array<int64_t, 3>{s.batch, rows, s.embed}).data();
    v.given.device.type = p.gpu() ? 2 : 1, v.given.device.id = p.gpu() ? p.place.gpu : 0;
    v.given.dtype.code = s.dtype == DType::bf16 ? 4 : 2, v.given.dtype.lanes = 1;
    v.given.dtype.bits = uint8_t(8 * size_of(s.dtype));
    return to = &v.given, Status::good();
  };
  const auto room = [&](size_t bytes, void*& to) {
    std::byte* place = nullptr;
    const Status taken = p.take(bytes, place);
    return to = place, taken;
  };
  p.args.size = sizeof p.args;
  if (Status bad = value(p.x, p.args.x, s.len); !bad.ok()) return bad;
  if (Status bad = value(p.out, p.args.out, s.len); !bad.ok()) return bad;
  if (s.memory)
    if (Status bad = value(p.memory_in, p.args.memory, s.memory); !bad.ok()) return bad;
  if (p.backward()) {
    if (Status bad = value(p.d_out, p.args.d_out, s.len); !bad.ok()) return bad;
    if (Status bad = value(p.dx, p.args.dx, s.len); !bad.ok()) return bad;
    if (s.memory)
      if (Status bad = value(p.d_memory, p.args.d_memory, s.memory); !bad.ok()) return bad;
    if (p.ranks.empty())
      if (Status bad = room(p.needs.tape, p.args.tape); !bad.ok()) return bad;
  }
  if (!p.ranks.empty()) return p.open_ranks();
  if (s.dropout > 0)
    if (Status bad = p.open_seed(); !bad.ok()) return bad;
  p.args.workspace_bytes = p.room();
  return room(p.room(), p.args.workspace);
}

Status ModuleRun::fill(Distribution distribution, uint32_t seed, double& rms) {
  Parts& p = *parts_;
  Random random{seed};
  double sum = 0;
  for (const Values* v : {&p.x, &p.memory_in, &p.d_out}) {
    if (!v->there) continue;
    each(v->here, [&](int b, int s, int d) {
      const double x = distribution == Distribution::normal    ? random.normal()
                       : distribution == Distribution::uniform ? 2 * random.uniform() - 1
                                                               : 0;
      store(v->here, b, s, 0, d, x);
      if (v == &p.x) sum += x * x;
    });
    if (Status s = p.send(*v); !s.ok()) return s;
  }
  rms = std::sqrt(sum / (double(p.set.batch) * p.set.len * p.set.embed));
  return Status::good();
}

Status ModuleRun::take_inputs(const ModuleRun& narrow) {
  const Parts& from = *narrow.parts_;
  Parts& to = *parts_;
  for (const auto& both : {std::pair{&from.x, &to.x}, {&from.memory_in, &to.memory_in}, {&from.d_out, &to.d_out}}) {
    const Tensor &a = both.first->here, &b = both.second->here;
    if (!both.second->there) continue;
    each(b, [&](int i, int s, int d) { store(b, i, s, 0, d, load(a, i, s, 0, d)); });
    if (Status s = to.send(*both.second); !s.ok()) return s;
  }
  return Status::good();
}

Status ModuleRun::negate_input() {
  const Values& v = parts_->backward() ? parts_->d_out : parts_->x;
  each(v.here, [&](int b, int s, int d) { store(v.here, b, s, 0, d, -load(v.here, b, s, 0, d)); });
  return parts_->send(v);
}

// Native sparse attention selects by scores, and other roundings select other blocks. The queries whose blocks are all
// selected compute the same in every dtype.
int ModuleRun::exact_rows() const {
  const Settings& s = parts_->set;
  Problem p;
  if (s.kind == ModuleKind::feed_forward || !attention_of(s, s.attention, s.len, p).ok()) return s.len;
  if (word(p.variant) == "adaptive") return 0;
  return word(p.variant) == "nsa" ? std::min(s.len, nsa_of(p).n * nsa_of(p).s) : s.len;
}

Status ModuleRun::keep_exact_rows() {
  const Values& v = parts_->d_out;
  const int exact = exact_rows();
  if (!v.there || exact == parts_->set.len) return Status::good();
  each(v.here, [&](int b, int s, int d) {
    if (s >= exact) store(v.here, b, s, 0, d, 0);
  });
  return parts_->send(v);
}

Status ModuleRun::once() {
  Parts& p = *parts_;
  if (Status s = p.poison_results(); !s.ok()) return s;
  if (p.backward())
    if (Status s = p.call(false); !s.ok()) return s;
  if (!run()) return status_;
  if (!p.ranks.empty()) return p.deal(p.backward() ? &Parts::dx : &Parts::out, true);
  for (const Values* v : {p.backward() ? &p.dx : &p.out, &p.d_memory})
    if (v->there)
      if (Status s = p.fetch(*v); !s.ok()) return s;
  return Status::good();
}

bool ModuleRun::run() {
  status_ = parts_->call(parts_->backward());
  return status_.ok();
}

std::string ModuleRun::why() const {
  const size_t ranks = parts_->ranks.size();
  const std::string why = attune_module_why(parts_->named());
  return ranks ? join(why, "; ", ranks, " ranks are threads of this process") : why;
}

size_t ModuleRun::workspace_bytes() const {
  return size_t(parts_->backward() ? parts_->needs.backward : parts_->needs.forward_only);
}

Status ModuleRun::compare(const ModuleRun& in_f32, double& error, std::string& where) const {
  const Parts &mine = *parts_, &theirs = *in_f32.parts_;
  const bool backward = mine.backward();
  struct Result { std::string name; Distance d; };
  std::vector<Result> all;
  const Tensor &got = (backward ? mine.dx : mine.out).here, &want = (backward ? theirs.dx : theirs.out).here;
  Distance rows;
  const int exact = exact_rows();
  each(want, [&](int b, int s, int d) {
    if (s < exact) rows.add(load(got, b, s, 0, d), load(want, b, s, 0, d));
  });
  // Gradients that are 0 except for rounding (the bias of the keys) are measured relative to all gradients together.
  Distance parameters;
  if (mine.d_memory.there) {
    Distance& d = all.emplace_back(Result{"memory", {}}).d;
    each(mine.d_memory.here, [&](int b, int s, int i) {
      d.add(load(mine.d_memory.here, b, s, 0, i), load(theirs.d_memory.here, b, s, 0, i));
    });
  }
  if (backward) {
    const Status read = mine.each_parameter([&](const char* name) {
      attune_tensor w{};
      if (Status s = said(attune_module_gradient(theirs.module, name, &w)); !s.ok()) return s;
      Flat a, b(w);
      if (Status s = mine.read_gradient(name, a); !s.ok()) return s;
      if (Status s = theirs.read(w, b); !s.ok()) return s;
      Distance& d = all.emplace_back(Result{name, {}}).d;
      for (int i = 0; i < a.t.extent.dim; ++i) d.add(load(a.t, 0, 0, 0, i), load(b.t, 0, 0, 0, i));
      parameters.size += d.size;
      return Status::good();
    });
    if (!read.ok()) return read;
  }
  // Allowed relative distance from the f32 result in the L2 norm, by dtype.
  const double allowed = (mine.set.dtype == DType::bf16 ? 0.02 : 0.003) * (backward ? 2 : 1);
  constexpr double kShare = 0.05;
  const auto share = [&](double off, double size) { return off == 0 ? 0 : std::sqrt(off) / size / allowed; };
  error = share(rows.off, std::sqrt(rows.size)), where = backward ? "dx" : "out";
  for (const Result& r : all) {
    if (std::isnan(error)) break;  // poison was not overwritten
    const double e = share(r.d.off, std::sqrt(r.d.size) + kShare * std::sqrt(parameters.size));
    if (!(e <= error)) error = e, where = join("the gradient of ", r.name);
  }
  return Status::good();
}

}  // namespace attune
