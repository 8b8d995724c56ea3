#include "tool/measure/module_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "attune/attune.h"
#include "machine/host.h"

namespace attune {
namespace {

constexpr std::string_view kKind = "multihead ", kBar = " | ";

// What a line says of sizes; everything else in it is the module's own to judge.
struct Sizes {
  std::string_view dtype{};
  int batch = 0, len = 0, embed = 0, heads = 0, heads_kv = 0, dim = 0, dim_v = 0;
  bool plain = true;  // without memory, dropout and block lists
  double tokens() const { return double(batch) * len; }
  double matrices() const {  // elements
    return double(embed) * (heads * dim + heads_kv * (dim + dim_v)) + double(heads) * dim_v * embed;
  }
};

bool number(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && out > 0;
}

Status read(std::string_view line, Sizes& out) {
  const size_t bar = line.find(kBar);
  if (bar == line.npos) return Status::no("'", line, "' has no mask: \"", line, " | causal\"");
  Sizes s;
  s.plain = line.find(kBar, bar + 1) == line.npos;
  std::string_view head = line.substr(kKind.size(), bar - kKind.size());
  const auto is = [](std::string_view w, char letter) {
    return w.size() > 1 && w[0] == letter && w[1] >= '0' && w[1] <= '9';
  };
  for (bool good = true; !head.empty();) {
    const std::string_view w = head.substr(0, head.find(' '));
    head.remove_prefix(std::min(head.size(), w.size() + 1));
    if (s.dtype.empty()) s.dtype = w;
    else if (is(w, 'b')) good = number(w.substr(1), s.batch);
    else if (is(w, 's')) good = number(w.substr(1), s.len);
    else if (is(w, 'e')) good = number(w.substr(1), s.embed);
    else if (is(w, 'h')) {
      const size_t slash = w.find('/');
      good = number(w.substr(1, slash == w.npos ? slash : slash - 1), s.heads);
      if (good && slash != w.npos) good = number(w.substr(slash + 1), s.heads_kv);
    } else if (w.starts_with("dim=")) good = number(w.substr(4), s.dim);
    else if (w.starts_with("dim_v=")) good = number(w.substr(6), s.dim_v);
    else if (w.starts_with("memory=") || w.starts_with("dropout=")) s.plain = false;
    if (!good) return Status::no("'", w, "' of '", line, "' is not a size of at least 1");
  }
  if (!s.batch || !s.len || !s.embed || !s.heads)
    return Status::no("'", line, "' is not a line of a module: multihead dtype b# s# e# h# | mask");
  if (!s.heads_kv) s.heads_kv = s.heads;
  if (!s.dim) s.dim = s.embed / s.heads;
  if (!s.dim_v) s.dim_v = s.dim;
  return out = s, Status::good();
}

Sizes sizes_of(const BenchRow& row) {
  Sizes s;
  (void)read(row.module, s);  // it was read before
  return s;
}

Status said(int code) { return code ? Status::no(attune_last_error()) : Status::good(); }

int64_t count(const attune_tensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
// Elements of a parameter, one after the other.
Tensor flat(const attune_tensor& t) {
  const DType dtype = t.dtype.bits == 32 ? DType::f32 : t.dtype.code == 4 ? DType::bf16 : DType::f16;
  return {.data = static_cast<std::byte*>(t.data) + t.byte_offset, .dtype = dtype, .extent = {1, 1, 1, int(count(t))}};
}

// Sums over elements: of squares of the f32 result, and of the differences from it.
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

bool is_module_row(std::string_view text) {
  for (const std::string_view pass : {"forward ", "backward "})
    if (text.starts_with(pass)) return text.substr(pass.size()).starts_with(kKind);
  return false;
}

Status parse_module_row(std::string_view text, BenchRow& out) {
  if (!is_module_row(text)) return Status::no("'", text, "' is not forward or backward and a line of a multihead");
  const size_t space = text.find(' ');
  const std::string_view line = text.substr(space + 1);
  Sizes s;
  if (Status bad = read(line, s); !bad.ok()) return bad;
  out = {};
  std::string_view tail = line.substr(line.find(kBar) + kBar.size());
  tail = tail.substr(0, tail.find(kBar));
  const std::string attention = join(text.substr(0, space), " ", s.dtype, " b", s.batch, " h", s.heads, "/", s.heads_kv,
                                     " q", s.len, " k", s.len, " d", s.dim, "/", s.dim_v, " ", tail);
  if (Status bad = parse(attention, out.problem); !bad.ok()) return bad;
  out.module = line, out.label = text;
  return Status::good();
}

Status can_time_module(const BenchRow& row, const Device& device) {
  const Sizes s = sizes_of(row);
  const std::string_view variant = word(row.problem.variant);
  if (device.kind != DeviceKind::cpu) return Status::no("not built: modules are timed on CPUs only");
  if (device.units != this_cpu().units)
    return Status::no("not built: modules are timed with all ", this_cpu().units, " threads, not ", device.units);
  if (s.dtype == "f32")
    return Status::no("not built: a module is checked against itself in f32, and so those in f32 are not timed");
  if (!s.plain || (!variant.empty() && variant != "dilated"))
    return Status::no("not built: modules are timed with plain and dilated self-attention, without dropout");
  return Status::good();
}

Cost module_cost(const BenchRow& row) {
  const Sizes s = sizes_of(row);
  const bool backward = row.problem.pass == Pass::backward;
  const double tokens = s.tokens(), matrices = s.matrices(), size = size_of(row.problem.dtype.kv);
  Cost c = cost(row.problem);
  c.flops += (backward ? 4 : 2) * tokens * matrices;
  c.bytes = (backward ? 3 : 2) * tokens * s.embed * size + matrices * (backward ? size + sizeof(float) : size);
  return c;
}

struct ModuleRun::Parts {
  std::string line{}, device{};
  Sizes sizes{};
  Pass pass = Pass::forward;
  attune_module* module = nullptr;
  attune_module_sizes needs{};
  std::vector<Memory> memory{};
  Tensor x{}, out{}, d_out{}, dx{};
  int64_t shape[3] = {};
  attune_tensor given[4] = {};  // the same to the module
  attune_module_args args{};

  ~Parts() { attune_module_destroy(module); }
  bool backward() const { return pass == Pass::backward; }
  DType dtype() const { return sizes.dtype == "f32" ? DType::f32 : sizes.dtype == "bf16" ? DType::bf16 : DType::f16; }
  size_t room() const { return size_t(std::max({needs.forward, needs.forward_only, backward() ? needs.backward : 0})); }
  size_t values() const {  // bytes of x, and of each that has its shape
    return size_t(sizes.tokens()) * size_t(sizes.embed) * size_t(size_of(dtype()));
  }
  Status make() {
    attune_module_options options{};
    options.size = sizeof options, options.device = device.c_str();
    if (Status s = said(attune_module_create(line.c_str(), &options, &module)); !s.ok()) return s;
    if (Status s = read(line, sizes); !s.ok()) return s;
    needs.size = sizeof needs;
    return said(attune_module_measure(module, &needs));
  }
};

ModuleRun::ModuleRun() : parts_(std::make_unique<Parts>()) {}
ModuleRun::~ModuleRun() = default;

Status ModuleRun::make(const BenchRow& row, const std::string& device) {
  parts_->device = device, parts_->pass = row.problem.pass, parts_->line = row.module;
  return parts_->make();
}

Status ModuleRun::make_wide(const ModuleRun& narrow) {
  const Parts& from = *narrow.parts_;
  parts_->device = from.device, parts_->pass = from.pass;
  parts_->line = join(kKind, "f32", from.line.substr(kKind.size() + from.sizes.dtype.size()));
  if (Status s = parts_->make(); !s.ok()) return s;
  const char* name = nullptr;
  for (int n = 0; (name = attune_module_parameter_name(from.module, n)) != nullptr; ++n) {
    attune_tensor have{}, want{};
    if (Status s = said(attune_module_parameter(from.module, name, &have)); !s.ok()) return s;
    if (Status s = said(attune_module_parameter(parts_->module, name, &want)); !s.ok()) return s;
    if (count(have) != count(want)) return Status::no("in f32 the module has another ", name);
    const Tensor a = flat(have), b = flat(want);
    for (int i = 0; i < a.extent.dim; ++i) store(b, 0, 0, 0, i, load(a, 0, 0, 0, i));
  }
  return Status::good();
}

double ModuleRun::bytes() const {
  const Parts& p = *parts_;
  return double(p.room() + (p.backward() ? p.needs.tape : 0) + 4 * p.values());
}

void ModuleRun::open() {
  Parts& p = *parts_;
  const Sizes& s = p.sizes;
  p.shape[0] = s.batch, p.shape[1] = s.len, p.shape[2] = s.embed;
  const auto value = [&](Tensor& t, attune_tensor& to) -> const attune_tensor* {
    t = {.data = p.memory.emplace_back(p.values()).data(), .dtype = p.dtype(), .extent = {s.batch, s.len, 1, s.embed}};
    t.stride = {int64_t(s.len) * s.embed, s.embed, 0};
    std::memset(t.data, 0, p.values());
    to = {};
    to.data = t.data, to.device.type = 1, to.ndim = 3, to.shape = p.shape, to.axes = "bsd";
    to.dtype.code = p.dtype() == DType::bf16 ? 4 : 2, to.dtype.lanes = 1;
    to.dtype.bits = uint8_t(8 * size_of(p.dtype()));
    return &to;
  };
  p.args.size = sizeof p.args;
  p.args.x = value(p.x, p.given[0]), p.args.out = value(p.out, p.given[1]);
  if (p.backward()) {
    p.args.d_out = value(p.d_out, p.given[2]), p.args.dx = value(p.dx, p.given[3]);
    p.args.tape = p.memory.emplace_back(p.needs.tape).data();
  }
  p.args.workspace = p.memory.emplace_back(p.room()).data(), p.args.workspace_bytes = p.room();
}

double ModuleRun::fill(Distribution distribution, uint32_t seed) {
  Random random{seed};
  double sum = 0;
  for (const Tensor* t : {&parts_->x, &parts_->d_out}) {
    if (!t->data) continue;
    each(*t, [&](int b, int s, int d) {
      const double x = distribution == Distribution::normal    ? random.normal()
                       : distribution == Distribution::uniform ? 2 * random.uniform() - 1
                                                               : 0;
      store(*t, b, s, 0, d, x);
      if (t == &parts_->x) sum += x * x;
    });
  }
  return std::sqrt(sum / (parts_->sizes.tokens() * parts_->sizes.embed));
}

void ModuleRun::take_inputs(const ModuleRun& narrow) {
  const Parts &from = *narrow.parts_, &to = *parts_;
  each(to.x, [&](int b, int s, int d) { store(to.x, b, s, 0, d, load(from.x, b, s, 0, d)); });
  if (to.d_out.data)
    each(to.d_out, [&](int b, int s, int d) { store(to.d_out, b, s, 0, d, load(from.d_out, b, s, 0, d)); });
}

void ModuleRun::negate_input() {
  const Tensor& t = parts_->backward() ? parts_->d_out : parts_->x;
  each(t, [&](int b, int s, int d) { store(t, b, s, 0, d, -load(t, b, s, 0, d)); });
}

Status ModuleRun::once() {
  Parts& p = *parts_;
  constexpr int kPoison = 0xFF;  // NaN in every floating type
  std::memset((p.backward() ? p.dx : p.out).data, kPoison, p.values());
  if (!p.backward()) return run() ? Status::good() : status_;
  const char* name = nullptr;
  for (int n = 0; (name = attune_module_parameter_name(p.module, n)) != nullptr; ++n) {
    attune_tensor g{};
    if (Status s = said(attune_module_gradient(p.module, name, &g)); !s.ok()) return s;
    std::memset(flat(g).data, kPoison, size_t(count(g)) * sizeof(float));
  }
  if (Status s = said(attune_module_forward(p.module, &p.args, nullptr)); !s.ok()) return s;
  return run() ? Status::good() : status_;
}

bool ModuleRun::run() {
  const auto call = parts_->backward() ? attune_module_backward : attune_module_forward;
  status_ = said(call(parts_->module, &parts_->args, nullptr));
  return status_.ok();
}

std::string ModuleRun::why() const { return attune_module_why(parts_->module); }

size_t ModuleRun::workspace_bytes() const {
  return size_t(parts_->backward() ? parts_->needs.backward : parts_->needs.forward_only);
}

Status ModuleRun::compare(const ModuleRun& wide, double& error, std::string& where) const {
  const Parts &mine = *parts_, &theirs = *wide.parts_;
  const bool backward = mine.backward();
  struct Result { std::string name; Distance d; };
  std::vector<Result> all;
  const Tensor &got = backward ? mine.dx : mine.out, &want = backward ? theirs.dx : theirs.out;
  Distance rows;
  each(want, [&](int b, int s, int d) { rows.add(load(got, b, s, 0, d), load(want, b, s, 0, d)); });
  // Gradients that are 0 but for rounding (of the bias of keys) are measured by all of them together.
  Distance parameters;
  const char* name = nullptr;
  for (int n = 0; backward && (name = attune_module_parameter_name(mine.module, n)) != nullptr; ++n) {
    attune_tensor g{}, w{};
    if (Status s = said(attune_module_gradient(mine.module, name, &g)); !s.ok()) return s;
    if (Status s = said(attune_module_gradient(theirs.module, name, &w)); !s.ok()) return s;
    const Tensor a = flat(g), b = flat(w);
    Distance& d = all.emplace_back(Result{name, {}}).d;
    for (int i = 0; i < a.extent.dim; ++i) d.add(load(a, 0, 0, 0, i), load(b, 0, 0, 0, i));
    parameters.size += d.size;
  }
  // By dtype: so far a result in it may be from that in f32, in the norm.
  const double allowed = (mine.dtype() == DType::bf16 ? 0.02 : 0.003) * (backward ? 2 : 1);
  constexpr double kShare = 0.05;
  const auto share = [&](double off, double size) { return off == 0 ? 0 : std::sqrt(off) / size / allowed; };
  error = share(rows.off, std::sqrt(rows.size)), where = backward ? "dx" : "out";
  for (const Result& r : all) {
    if (std::isnan(error)) break;  // poison that is still there
    const double e = share(r.d.off, std::sqrt(r.d.size) + kShare * std::sqrt(parameters.size));
    if (!(e <= error)) error = e, where = join("the gradient of ", r.name);
  }
  return Status::good();
}

}  // namespace attune
