// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/dtypes.h"
#include "core/forward_of.h"
#include "verify/diagnose/diagnose.h"
#include "verify/on_gpu.h"

namespace attune {
namespace {

constexpr uint32_t kMostShakes = 8, kMostDraws = 16;

// Scratch memory with guards at both ends, all poisoned: a read before the first write shows as NaN.
struct Scratch {
  static constexpr size_t kGuard = 4096, kAlign = 256;
  size_t bytes;
  std::vector<std::byte> memory;
  std::byte* data;

  explicit Scratch(size_t n) : bytes(n), memory(n + 2 * kGuard + kAlign, std::byte{0xFF}) {
    const size_t at = (reinterpret_cast<uintptr_t>(memory.data()) + kGuard + kAlign - 1) / kAlign * kAlign;
    data = reinterpret_cast<std::byte*>(at);
  }
  bool guards_intact() const {
    const auto poison = [](std::byte b) { return b == std::byte{0xFF}; };
    return std::all_of(memory.data(), static_cast<const std::byte*>(data), poison) &&
           std::all_of(static_cast<const std::byte*>(data) + bytes, memory.data() + memory.size(), poison);
  }
};

Status run_reference(const Problem& p, const Args& args) {
  const Backend* reference = find_backend("reference");
  if (!reference) return Status::unsupported("parity: this build has no reference");
  Plan plan;
  if (Status s = plan_on(*reference, p, Device{}, plan); !s.ok()) return s;
  return reference->run(plan, args, {}, nullptr);
}

// For each element, in axis order, whether the golden run wrote it. Other elements must not be written.
std::vector<char> wanted_of(const Owned& golden) {
  std::vector<char> wanted;
  golden.each([&](int b, int s, int h, int d) { wanted.push_back(!golden.untouched(b, s, h, d)); });
  return wanted;
}
std::vector<double> values_of(const Owned& golden, const std::vector<char>& wanted, const Tensor& from) {
  std::vector<double> values;
  size_t n = 0;
  golden.each([&](int b, int s, int h, int d) {
    if (wanted[n++]) values.push_back(load(from, b, s, h, d));
  });
  return values;
}

std::string place(int b, int s, int h, int d) { return join("[", b, ", ", s, ", ", h, ", ", d, "]"); }

// The first element written on one side only, as a sentence; or "".
std::string misplaced(Role r, const std::vector<char>& wanted, const Owned& got) {
  std::string why;
  size_t n = 0;
  got.each([&](int b, int s, int h, int d) {
    const bool here = wanted[n++];
    if (here != got.untouched(b, s, h, d) || !why.empty()) return;
    const bool cache = r == Role::k || r == Role::v;
    why = join(name(r), place(b, s, h, d), here    ? " is not written"
                                           : cache ? " is written, but is not a new row"
                                                   : " is written, but does not belong to a query");
  });
  return why;
}

std::string element(const Owned& golden, const Owned& got, int64_t worst) {
  std::string text;
  int64_t n = 0;
  golden.each([&](int b, int s, int h, int d) {
    if (golden.untouched(b, s, h, d) || n++ != worst) return;
    text = join(place(b, s, h, d), " is ", load(got.t, b, s, h, d), ", not ", load(golden.t, b, s, h, d));
  });
  return text;
}

// The maximum number of products summed into one element of an output.
double terms(const Problem& p, Role r, const Extents& e) {
  const double rows = double(p.len_q) * p.batch;  // per head; sequences may share their keys
  if (r == Role::dk || r == Role::dv) return rows * (p.heads_q / p.heads_kv);
  if (r == Role::d_sinks) return rows;
  if (r == Role::d_bias && p.has(Option::block_bias))  // lists may be shared
    return double(p.mask.blocks.q) * p.mask.blocks.k * p.batch * p.heads_q;
  if (r >= Role::d_variant) return rows * p.heads_q;
  if (r == Role::d_bias) return rows * p.heads_q * p.len_k / (double(e.batch) * e.seq * e.head * e.dim);
  return p.len_k;
}

// Whether another draw of the seed may show keys where this one shows none.
bool draws_what_is_seen(const Problem& p, const Variation& v) {
  return v.lengths != Lengths::full || v.used_q || v.cache || p.mask.blocks.q || word(p.variant) == "selected";
}

double worst(const std::vector<Figures>& all, double Judged::*figure) {
  double most = 0;
  for (const Figures& f : all)
    if (const double x = f.judged.*figure; !(x <= most) && !std::isnan(most)) most = x;
  return most;
}

}  // namespace

double Outcome::mae() const { return worst(figures, &Judged::mae); }
double Outcome::max() const { return worst(figures, &Judged::max); }
double Outcome::relative_l2() const { return worst(figures, &Judged::relative_l2); }
double Outcome::used() const { return worst(figures, &Judged::used); }

Status plan_on(const Backend& b, const Problem& p, const Device& d, Plan& out) {
  if (Status s = valid(p); !s.ok()) return s;
  Plan plan{.backend = &b, .problem = p, .device = d, .why = "selected by name"};
  if (Status s = b.supports(p, d); !s.ok()) return s;
  if (Status s = b.shape(plan, Planner{.device = d, .forced = b.name}); !s.ok()) return s;
  out = std::move(plan);
  return Status::good();
}

Status golden_supports(const Problem& p) {
  const Backend* reference = find_backend("reference");
  return reference ? reference->supports(p, Device{}) : Status::unsupported("parity: this build has no reference");
}

Trial::Trial(const Case& c) : world(c.problem, c.variation) {}

Status Trial::prepare() {
  if (Status s = golden_supports(world.problem); !s.ok()) return s;
  if (Status s = draw(); !s.ok()) return s;
  const bool again = !world.variation.empty && draws_what_is_seen(world.problem, world.variation);
  for (uint32_t n = 1; again && !shows_keys() && n < kMostDraws; ++n) {
    const Case c{.problem = world.problem, .variation = world.variation};
    world = World(c.problem, c.variation, n);
    if (Status s = draw(); !s.ok()) return s;
  }
  const bool shows = shows_keys();
  if (world.variation.empty && shows) return Status::no("case: 'empty' is given, but some query sees a key");
  compares_ = world.variation.empty ? elements() > 0 : shows;
  return Status::good();
}

// The golden result of the world as it is now.
Status Trial::draw() {
  const Problem& p = world.problem;
  golden_.clear(), wanted_.clear(), shakes_ = 0;
  if (p.pass == Pass::backward) {
    const Problem forward = forward_of(p);
    const Args result = world.forward_result();
    if (Status s = check(forward, result); !s.ok()) return s;
    if (Status s = run_reference(forward, result); !s.ok()) return s;
  }
  const Outputs typed = world.outputs(false);
  if (Status s = check(p, typed.args); !s.ok()) return s;
  if (Status s = check_values(p, typed.args); !s.ok()) return s;
  golden_outputs_ = world.outputs(true);
  if (Status s = run_reference(p, golden_outputs_.args); !s.ok()) return s;
  for (const Role r : golden_outputs_.roles) {
    const Owned& golden = golden_outputs_.of(r);
    Golden& g = golden_[r];
    wanted_[r] = wanted_of(golden);
    g.values = values_of(golden, wanted_[r], golden.t);
    for (const double x : g.values)
      if (std::isnan(x) || x == INFINITY) return Status::no("reference: ", name(r), " contains ", x);
  }
  inputs_ = world.fingerprint();
  return shake();
}

Status Trial::shake() {
  const Outputs naive = world.shaken(shakes_);
  naive_rounding = world.naive_rounding_of(shakes_++);
  const Status ran = run_reference(world.problem, naive.args);
  naive_rounding = {};
  if (!ran.ok()) return ran;
  for (auto& [role, golden] : golden_)
    golden.shake(values_of(golden_outputs_.of(role), wanted_.at(role), naive.args[role]));
  return Status::good();
}

Outcome Trial::run(const Backend& backend, const Device& device, std::mutex* alone) {
  Outputs got = world.outputs(false);
  const auto fail = [](std::string why) { return Outcome{.verdict = Verdict::fail, .why = std::move(why)}; };
  Plan plan;
  if (Status s = plan_on(backend, world.problem, device, plan); !s.ok()) return fail(s.message);
  const bool on_gpu = device.kind == DeviceKind::cuda;
  Outcome unfit;
  Scratch scratch(on_gpu ? 0 : plan.workspace_bytes);
  std::unique_lock<std::mutex> hold;
  if (alone) hold = std::unique_lock(*alone);
  if (watch) watch(true);
  const Status s = on_gpu ? run_on_gpu(plan, world, got, unfit.unfit)
                          : backend.run(plan, got.args, {scratch.data}, nullptr);
  if (watch) watch(false);
  if (hold) hold.unlock();
  if (!unfit.unfit.empty()) return unfit;
  if (!s.ok()) return fail(s.message);
  Outcome o = judge(got);
  if (!scratch.guards_intact())
    o.verdict = Verdict::fail, o.why = "writes outside its workspace", o.by_rounding = false;
  return o;
}

// Gradients that a sink has without any key, and rows that an append copies, do not count: they show no key.
bool Trial::shows_keys() const {
  const std::vector<Role>& roles = golden_outputs_.roles;
  const auto main = [](Role r) { return r == Role::out || r == Role::dq || r == Role::dk || r == Role::dv; };
  const bool has_main = std::any_of(roles.begin(), roles.end(), main);
  const Outputs before = world.outputs(true), typed = world.outputs(false);
  for (const Role r : roles) {
    const Golden& golden = golden_.at(r);
    const Tensor& out = typed.of(r).t;
    if (has_main ? !main(r) : r == Role::lse) continue;
    if (!is_floating(out.dtype)) {  // the numbers of blocks and tokens: -1 and 0 are those of nothing
      if (std::any_of(golden.values.begin(), golden.values.end(), [](double x) { return x > 0; })) return true;
      continue;
    }
    std::vector<double> nothing(golden.values.size());
    if (world.problem.has(Option::accumulate))
      nothing = values_of(golden_outputs_.of(r), wanted_.at(r), before.of(r).t);
    for (double& x : nothing)
      if (std::isnan(x)) x = 0;  // had seen nothing before either
    if (attune::judge(golden, nothing, yardstick(r, out)).verdict == Verdict::fail) return true;
  }
  return false;
}

size_t Trial::elements() const {
  size_t count = 0;
  for (const auto& [role, golden] : golden_) count += golden.values.size();
  return count;
}

Outcome Trial::judge(const Outputs& got) {
  Outcome o = compare(got);
  // One perturbation of a small output may be small by chance, so more are drawn before this counts as a failure.
  while (o.verdict == Verdict::fail && o.used() > 1 && o.used() < 10 && shakes_ < kMostShakes && shake().ok())
    o = compare(got);
  if (world.fingerprint() != inputs_)
    o.verdict = Verdict::fail, o.why = "writes into its inputs", o.by_rounding = false;
  if (o.verdict != Verdict::fail && !compares_) o.verdict = Verdict::empty;
  return o;
}

Yardstick Trial::yardstick(Role r, const Tensor& out) const {
  return {.dtype = out.dtype,
          .scaled = world.variation.magnitude || world.variation.large_logits,
          .terms = terms(world.problem, r, out.extent),
          .shake = world.largest_shake(),
          .weights = r == Role::lse ? world.problem.dtype.kv : DType::none};
}

Outcome Trial::compare(const Outputs& got) const {
  Outcome o;
  bool more = false;
  const auto fail = [&](std::string why, bool rounding = false) {
    o.verdict = Verdict::fail, more |= !rounding;
    if (o.why.empty()) o.why = std::move(why);
  };
  for (const Role r : got.roles) {
    const Owned &golden = golden_outputs_.of(r), &mine = got.of(r);
    if (!mine.surroundings_intact()) fail(join("writes outside ", name(r)));
    if (std::string why = misplaced(r, wanted_.at(r), mine); !why.empty()) fail(std::move(why));
    const Judged j = attune::judge(golden_.at(r), values_of(golden, wanted_.at(r), mine.t), yardstick(r, mine.t));
    o.figures.push_back({r, j});
    o.verdict = std::max(o.verdict, j.verdict);
    const bool integers = mine.t.dtype == DType::i32 || mine.t.dtype == DType::i64;
    if (integers && j.max != 0) fail(join(name(r), element(golden, mine, j.worst), ": integers must be exact"));
    const bool copied = r == Role::v || (r == Role::k && !world.problem.rotates());
    if (copied && j.max != 0) fail(join(name(r), element(golden, mine, j.worst), ": a new row must be a copy"));
    if (j.verdict == Verdict::fail)
      fail(join(name(r), element(golden, mine, j.worst), ": ", j.used, " times the tolerance, MAE ", j.mae),
           std::isfinite(j.used));
  }
  o.by_rounding = o.verdict == Verdict::fail && !more;
  if (o.verdict == Verdict::fail)
    if (const Mistake m = diagnose(world.problem, got.args); !m.name.empty())
      o.mistake = join(m.name, ": ", m.sentence);
  return o;
}

}  // namespace attune
