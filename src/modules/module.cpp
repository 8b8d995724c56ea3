// SPDX-License-Identifier: Apache-2.0
#include "modules/module.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

#include "core/dropout.h"
#include "core/overlap.h"
#include "machine/cpu/threads.h"
#include "modules/build.h"
#include "plan/tuned.h"

namespace attune {
namespace {

constexpr size_t kAlign = 256;

Status no(const auto&... why) { return Status::no("module: ", why...); }

// Makes a GPU current for its lifetime.
class Current {
 public:
  explicit Current(const Device& d) {
    if (d.kind == DeviceKind::cuda) use_.emplace(d.index);
  }
  Status status() const { return use_ ? use_->status : Status::good(); }

 private:
  std::optional<cuda::DeviceGuard> use_{};
};

// A standard normal number as a function of seed, name and index. It is the same on every device, and the initial value
// of a parameter does not depend on which others exist.
double normal(uint64_t seed, uint64_t name, uint64_t place) {
  const Words4 w = philox({{uint32_t(place >> 1), uint32_t(place >> 33), uint32_t(name), uint32_t(name >> 32)}},
                          uint32_t(seed), uint32_t(seed >> 32));
  const double radius = (w.w[0] + 1.) * 0x1p-32, angle = (w.w[1] + w.w[2] * 0x1p-32) * 0x1p-32;  // 0 < radius <= 1
  const double length = std::sqrt(-2 * std::log(radius)), phase = 2 * std::numbers::pi * angle;
  return length * (place & 1 ? std::sin(phase) : std::cos(phase));
}

uint64_t hash_of(std::string_view text) {  // FNV-1a: the same on every machine
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ uint8_t(c)) * 0x100000001B3u;
  return h;
}

void store(DType t, std::byte* to, int64_t n, float x) {
  if (t == DType::f32) reinterpret_cast<float*>(to)[n] = x;
  else if (t == DType::f16) reinterpret_cast<F16*>(to)[n] = F16(x);
  else reinterpret_cast<Bf16*>(to)[n] = Bf16(x);
}

}  // namespace

Status Storage::allocate(const Device& d, size_t bytes) {
  if (d.kind == DeviceKind::cuda) {
    if (Status s = there_.allocate(d.index, std::max(bytes, kAlign)); !s.ok()) return s.after("module: ");
    data_ = there_.data();
    const cuda::DeviceGuard use(d.index);
    if (!use.status.ok()) return use.status.after("module: ");
    constexpr size_t kPiece = size_t(1) << 24;
    const std::vector<std::byte> zeros(std::min(bytes, kPiece));
    for (size_t at = 0; at < bytes; at += kPiece)
      if (Status s = cuda::copy_to(data_ + at, zeros.data(), std::min(kPiece, bytes - at), nullptr); !s.ok()) return s;
    return Status::good();
  }
  here_.reset(new (std::nothrow) std::byte[bytes + kAlign]);
  if (!here_) return Status::failure(Code::out_of_memory, "module: ", bytes, " bytes could not be allocated");
  data_ = here_.get() + (kAlign - reinterpret_cast<uintptr_t>(here_.get()) % kAlign) % kAlign;
  std::memset(data_, 0, bytes);
  return Status::good();
}

Status Module::make(const Settings& settings, const Device& device, const Module* shares,
                    std::unique_ptr<Module>& out) {
  auto made = std::make_unique<Module>();
  made->settings_ = settings;
  Graph& g = made->graph_;
  g.batch = settings.batch, g.len = settings.len, g.device = device;
  if (device.index < 0) return Status::unsupported("module: device ", device.name, " is not present");
  Tuned tuned;
  if (Status s = load_tuned(device, tuned); !s.ok()) return s;
  if (Status s = build(settings, tuned.rules, g, made->why_); !s.ok()) return s;
  if (shares) {
    const auto& theirs = shares->graph_.parameters;
    bool same = theirs.size() == g.parameters.size() && shares->graph_.device.kind == device.kind &&
                shares->graph_.device.index == device.index;
    for (size_t n = 0; same && n < theirs.size(); ++n)
      same = theirs[n].name == g.parameters[n].name && theirs[n].dtype == g.parameters[n].dtype &&
             theirs[n].shape == g.parameters[n].shape;
    if (!same)
      return no("'", name(settings), "' and '", name(shares->settings_),
                "' differ in parameters or device, and cannot share parameters");
    made->shared_ = shares->shared_;
  } else {
    made->shared_ = std::make_shared<Shared>();
    if (Status s = made->shared_->parameters.allocate(device, g.parameter_bytes); !s.ok()) return s;
    if (Status s = made->initialise(); !s.ok()) return s;
  }
  if (Status s = made->prepare(); !s.ok()) return s;
  out = std::move(made);
  return Status::good();
}

Status Module::prepare() {
  if (Status s = constants_.allocate(graph_.device, graph_.constant_bytes); !s.ok()) return s;
  for (const Constant& c : graph_.constants) {
    if (graph_.device.kind == DeviceKind::cpu) {
      std::memcpy(constants_.data() + c.at, c.bytes.data(), c.bytes.size());
      continue;
    }
    const cuda::DeviceGuard use(graph_.device.index);
    if (!use.status.ok()) return use.status.after("module: ");
    if (Status s = cuda::copy_to(constants_.data() + c.at, c.bytes.data(), c.bytes.size(), nullptr); !s.ok()) return s;
  }
  // Addresses that are never read, far enough apart.
  const auto place = [](int n) { return reinterpret_cast<std::byte*>(uintptr_t(n) << 48); };
  ModuleCall pretended;
  pretended.tape = place(1), pretended.workspace = place(2);
  Run r = run_of(pretended, Pass::backward);
  r.parameters = place(3), r.parameter_gradients = place(4), r.constants = place(5);
  r.seed = {.data = place(6), .dtype = DType::i64, .device = graph_.device.kind, .extent = {1, 1, 1, 2}};
  r.seed.device_index = graph_.device.kind == DeviceKind::cuda ? graph_.device.index : 0;
  for (int n = 0; n < int(Argument::count); ++n)
    for (Tensor* t : {&r.given[n], &r.gradient_given[n]})
      t->data = place(7 + 2 * n + int(t == &r.given[n])), t->device = graph_.device.kind;
  for (const auto& step : graph_.steps)
    if (Status s = step->check(r); !s.ok()) return s;
  return Status::good();
}

Status Module::initialise() const {
  const uint64_t seed = uint64_t(settings_.seed);
  std::vector<std::byte> host;
  for (const Parameter& p : graph_.parameters) {
    const int64_t count = p.count();
    host.resize(size_t(count) * size_t(size_of(p.dtype)));
    const uint64_t key = hash_of(p.name);
    const double by = p.init.kind == Init::xavier ? p.init.value * std::sqrt(2 / p.init.fan) : 0;
    const float same = p.init.kind == Init::one ? 1.f : p.init.kind == Init::constant ? float(p.init.value) : 0.f;
    const int workers = clamp(count / 4096, 1, graph_.device.kind == DeviceKind::cpu ? graph_.device.units : 16);
    auto work = [&](int worker) {
      for (int64_t n = count * worker / workers; n < count * (worker + 1) / workers; ++n)
        store(p.dtype, host.data(), n, p.init.kind == Init::xavier ? float(by * normal(seed, key, uint64_t(n))) : same);
    };
    parallel(workers, work);
    if (Status s = write(p, host.data()); !s.ok()) return s;
  }
  return Status::good();
}

size_t Module::workspace_bytes(Pass pass, bool tape) const {
  return pass == Pass::backward ? graph_.backward_bytes : tape ? graph_.forward_bytes : graph_.lean_bytes;
}

const Parameter* Module::find(std::string_view name) const {
  for (const Parameter& p : graph_.parameters)
    if (p.name == name) return &p;
  return nullptr;
}

Status Module::gradients(std::byte*& out) const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->gradients.data())
    if (Status s = shared_->gradients.allocate(graph_.device, graph_.gradient_bytes); !s.ok()) return s;
  return out = shared_->gradients.data(), Status::good();
}

Status Module::tape(std::byte*& out) const {
  const std::lock_guard lock(shared_->mutex);
  if (!tape_.data())
    if (Status s = tape_.allocate(graph_.device, graph_.tape_bytes); !s.ok()) return s;
  return out = tape_.data(), Status::good();
}

Status Module::write(const Parameter& p, const void* from) const {
  const size_t bytes = size_t(p.count()) * size_t(size_of(p.dtype));
  if (graph_.device.kind == DeviceKind::cpu) return std::memcpy(data(p), from, bytes), Status::good();
  const cuda::DeviceGuard use(graph_.device.index);
  return use.status.ok() ? cuda::copy_to(data(p), from, bytes, nullptr) : use.status;
}

Status Module::read(const Parameter& p, void* to) const {
  const size_t bytes = size_t(p.count()) * size_t(size_of(p.dtype));
  if (graph_.device.kind == DeviceKind::cpu) return std::memcpy(to, data(p), bytes), Status::good();
  const cuda::DeviceGuard use(graph_.device.index);
  return use.status.ok() ? cuda::copy_from(to, data(p), bytes, nullptr) : use.status;
}

Status Module::check(const ModuleCall& c, Pass pass) const {
  const Settings& s = settings_;
  const bool back = pass == Pass::backward;
  const struct { std::string_view name; const Tensor& t; int len; bool needed;
  } all[] = {{"x", c.x, s.len, true},      {"memory", c.memory, s.memory, s.memory > 0},
             {"out", c.out, s.len, !back}, {"d_out", c.d_out, s.len, back},
             {"dx", c.dx, s.len, false},   {"d_memory", c.d_memory, s.memory, false}};
  for (const auto& [name, t, len, needed] : all) {
    if (!t.data && needed) return no(name, " not given");
    if (!t.data) continue;
    if (!len) return no(name, " given, but the module has no memory");
    const Extents e = row_extent(s.batch, len, s.embed);
    const Strides now = t.stride, want = compact(e);
    if (t.extent.batch != e.batch || t.extent.seq != e.seq || t.extent.head != 1 || t.extent.dim != e.dim ||
        now.batch != want.batch || now.seq != want.seq)
      return no(name, " is [", t.extent.batch, ", ", t.extent.seq, ", ", t.extent.head, ", ", t.extent.dim,
                "], not a compact [", s.batch, ", ", len, ", ", s.embed, "]");
    if (t.dtype != s.dtype) return no(name, " is ", attune::name(t.dtype), ", not ", attune::name(s.dtype));
    if (t.device != graph_.device.kind || (t.device == DeviceKind::cuda && t.device_index != graph_.device.index))
      return no(name, " is not on ", graph_.device.name);
    if (reinterpret_cast<uintptr_t>(t.data) % 16) return no(name, " is not aligned to 16 bytes");
  }
  const Tensor& seed = c.seed;
  if (seed.data && (seed.dtype != DType::i64 || seed.extent.dim != 2 || seed.device != graph_.device.kind))
    return no("seed is not [2] i64 on ", graph_.device.name);
  if (back && !c.tape) return no("tape not given, but a backward requires it");
  return check_memory(c, pass);
}

// Checks that nothing overlaps the outputs of a call.
Status Module::check_memory(const ModuleCall& c, Pass pass) const {
  struct Part { std::string_view name; Bytes bytes; bool written, tensor; } part[11];
  int count = 0;
  const auto tensor = [&](std::string_view name, const Tensor& t, bool written) {
    if (Bytes b; t.data && bytes_of(t, b)) part[count++] = {name, b, written, true};
  };
  const auto area = [&](std::string_view name, const std::byte* data, size_t bytes, bool written) {
    const auto first = reinterpret_cast<uintptr_t>(data);
    if (data && bytes) part[count++] = {name, {first, first + bytes}, written, false};
  };
  tensor("out", c.out, true), tensor("dx", c.dx, true), tensor("d_memory", c.d_memory, true);
  tensor("x", c.x, false), tensor("memory", c.memory, false), tensor("d_out", c.d_out, false);
  tensor("seed", c.seed, false);
  area("workspace", c.workspace, workspace_bytes(pass, c.tape), true), area("tape", c.tape, graph_.tape_bytes, true);
  const std::byte* gradients = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);  // another thread may allocate them first
    gradients = shared_->gradients.data();
  }
  area("gradients", gradients, graph_.gradient_bytes, pass == Pass::backward && c.parameters);
  area("parameters", shared_->parameters.data(), graph_.parameter_bytes, false);
  for (int n = 0; n < count; ++n)
    for (int m = n + 1; m < count; ++m)
      if ((part[n].written || part[m].written) && part[n].bytes.meets(part[m].bytes))
        return no(part[n].name, " shares memory with ", part[m].tensor ? "" : "the ", part[m].name);
  return Status::good();
}

Run Module::run_of(const ModuleCall& c, Pass pass) const {
  Run r{.graph = graph_};
  r.stream = c.stream;
  r.given[int(Argument::x)] = c.x, r.given[int(Argument::memory)] = c.memory, r.given[int(Argument::out)] = c.out;
  r.gradient_given[int(Argument::x)] = c.dx, r.gradient_given[int(Argument::memory)] = c.d_memory;
  r.gradient_given[int(Argument::out)] = c.d_out;
  r.lean = !c.tape;
  r.tape = c.tape ? c.tape : c.workspace;
  r.workspace = c.workspace;
  const size_t scratch_of_forward = c.tape ? 0 : graph_.lean_bytes - graph_.forward_bytes;
  r.scratch = c.workspace + (pass == Pass::forward ? scratch_of_forward : graph_.gradients_end);
  r.parameters = shared_->parameters.data(), r.constants = constants_.data();
  r.keep = c.add ? 1.f : 0.f;
  r.seed = c.seed, r.communicator = c.communicator;
  return r;
}

Status Module::forward(const ModuleCall& c) const {
  if (Status s = check(c, Pass::forward); !s.ok()) return s;
  const Current current(graph_.device);
  if (!current.status().ok()) return current.status().after("module: ");
  const Run r = run_of(c, Pass::forward);
  for (const auto& step : graph_.steps)
    if (Status s = step->forward(r); !s.ok()) return s;
  return Status::good();
}

Status Module::backward(const ModuleCall& c) const {
  if (Status s = check(c, Pass::backward); !s.ok()) return s;
  const Current current(graph_.device);
  if (!current.status().ok()) return current.status().after("module: ");
  Run r = run_of(c, Pass::backward);
  if (c.parameters)
    if (Status s = gradients(r.parameter_gradients); !s.ok()) return s;
  for (size_t n = graph_.steps.size(); n-- > 0;)
    if (Status s = graph_.steps[n]->backward(r); !s.ok()) return s;
  return Status::good();
}

}  // namespace attune
