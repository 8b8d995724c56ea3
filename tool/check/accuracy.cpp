// SPDX-License-Identifier: Apache-2.0
#include "tool/check/accuracy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/forward_of.h"
#include "core/work.h"
#include "machine/host.h"
#include "tool/check/spot.h"
#include "tool/subjects/workload.h"
#include "tool/text.h"
#include "variants/blocks/blocks.h"
#include "verify/diagnose/diagnose.h"
#include "verify/on_gpu.h"

namespace attune {
namespace {

constexpr const char* kReference = "reference";

bool has(const std::vector<Role>& roles, Role r) { return std::find(roles.begin(), roles.end(), r) != roles.end(); }

// A refusal before anything ran, and any other failure, apart.
struct Ran {
  Status refused{}, failed{};
  bool ok() const { return refused.ok() && failed.ok(); }
};

Ran run_peer(const attune_peer& peer, const World& world, const Device& device, Outputs& got) {
  Ran ran;
  std::erase(got.roles, Role::lse);  // peers compute out, or dq, dk and dv
  if (world.problem.pass == Pass::forward) got.args[Role::lse] = {};
  const auto call = [&](const Args& args, Workspace, void* stream) {
    PeerRun run(peer);
    const bool gpu = device.kind == DeviceKind::cuda;
    if (ran.refused = run.setup(world.problem, args, {.threads = device.units,
                                                      .gpu = gpu ? device.index : -1, .stream = stream});
        !ran.refused.ok())
      return ran.refused;
    if (Status s = run.run_once(); !s.ok()) return s;
    return run.fetch();
  };
  const Status s = device.kind == DeviceKind::cuda
                       ? run_on_gpu({.who = peer.name, .problem = &world.problem, .index = device.index,
                                     .workspace_bytes = 0, .run = call}, world, got)
                       : call(got.args, {}, nullptr);
  if (ran.refused.ok()) ran.failed = s;
  return ran;
}

Ran run_backend(const Backend& backend, const World& world, const Device& device, Outputs& got) {
  Ran ran;
  Plan plan;
  if (ran.refused = plan_on(backend, world.problem, device, plan); !ran.refused.ok()) return ran;
  if (device.kind == DeviceKind::cuda) {
    std::string unfit;
    ran.failed = run_on_gpu(plan, world, got, unfit);
    if (!unfit.empty()) ran.refused = Status::unsupported(unfit);
    return ran;
  }
  const Memory workspace(plan.workspace_bytes);
  ran.failed = backend.run(plan, got.args, {workspace.data()}, nullptr);
  return ran;
}

// The inputs as they were: one subject that writes into them must change neither the verdict nor the inputs of the
// others.
class InputsKept {
 public:
  explicit InputsKept(const World& world) : inputs_(world.inputs()) {
    for (const Owned& o : inputs_) kept_.push_back(o.memory);
  }
  // True if they were changed; they are as before then.
  bool put_back() const {
    bool changed = false;
    auto kept = kept_.begin();
    for (const Owned& o : inputs_) {
      const std::vector<unsigned char>& before = *kept++;
      if (o.memory == before) continue;
      auto* const data = static_cast<unsigned char*>(o.t.data);  // somewhere in o.memory, which World lets others write
      std::memcpy(data - (data - o.memory.data()), before.data(), before.size());
      changed = true;
    }
    return changed;
  }

 private:
  const std::list<Owned>& inputs_;
  std::vector<std::vector<unsigned char>> kept_{};
};

Ran run_into(const AccuracySubject& subject, const World& world, const Device& device, Outputs& got,
             const InputsKept& inputs) {
  Ran ran = subject.peer ? run_peer(*subject.peer, world, device, got)
                         : run_backend(*subject.backend, world, device, got);
  if (inputs.put_back() && ran.ok()) ran.failed = Status::no("writes into its inputs");
  return ran;
}

Accuracy row_of(const AccuracyCase& one, const AccuracySubject& subject, std::string_view against) {
  return {.problem = one.line, .subject = subject.name, .against = std::string(against)};
}

// Differences of everything that both wrote, in the roles that both have.
std::vector<Figures> differences(const Outputs& mine, const Outputs& other) {
  std::vector<Figures> all;
  for (const Role r : mine.roles) {
    if (!has(other.roles, r)) continue;
    const Owned &x = mine.of(r), &y = other.of(r);
    double sum = 0, square = 0, size = 0, most = 0;
    int64_t count = 0;
    x.each([&](int b, int s, int h, int d) {
      const double a = load(x.t, b, s, h, d), c = load(y.t, b, s, h, d);
      if (x.untouched(b, s, h, d) && y.untouched(b, s, h, d)) return;
      const double off = a == c ? 0 : std::abs(a - c);
      ++count, sum += off, square += off * off, size += c * c;
      if (!(off <= most)) most = off;  // NaN is the largest
    });
    const double root = std::sqrt(square / std::max(size, 1e-300));
    all.push_back({r, {.mae = count ? sum / double(count) : 0, .max = most, .relative_l2 = root}});
  }
  return all;
}

// Rows of a result by the definition. A sentence if they are wrong.
std::string wrong_rows(const Problem& p, const Outputs& got, std::string& mistake) {
  if (!can_draw(p).ok()) return "";
  const Checked checked = spot_check(p, got.args, 1);
  if (checked.verdict != CheckVerdict::fail) return "";
  const Mistake m = diagnose(p, got.args);
  mistake = m.name.empty() ? "" : join(m.name, ": ", m.sentence);
  return checked.message;
}

Accuracy against_reference(const AccuracyCase& one, const AccuracySubject& subject, std::optional<Trial>& trial,
                           const Status& ready, const Device& device, const std::optional<InputsKept>& inputs) {
  Accuracy row = row_of(one, subject, kReference);
  const auto end = [&](AccuracyEnd how, std::string message) {
    return row.end = how, row.message = std::move(message), row;
  };
  if (!ready.ok()) return end(AccuracyEnd::unserved, ready.message);
  Outputs got = trial->world.outputs(false);
  const Ran ran = run_into(subject, trial->world, device, got, *inputs);
  if (!ran.refused.ok()) return end(AccuracyEnd::unserved, ran.refused.message);
  if (!ran.failed.ok()) return end(AccuracyEnd::wrong, ran.failed.message);
  row.outcome = trial->judge(got);
  if (row.outcome.verdict == Verdict::fail) return end(AccuracyEnd::wrong, row.outcome.why);
  if (row.outcome.verdict == Verdict::empty)
    return end(AccuracyEnd::unserved, "no query sees a key, so nothing is compared");
  return row;
}

// The out and lse that a backward reads, by the planner's choice on this CPU.
Status run_forward(World& world) {
  if (world.problem.pass == Pass::forward) return Status::good();
  const Problem forward = forward_of(world.problem);
  const Args args = world.forward_result();
  Plan plan;
  if (Status s = Planner{.device = this_cpu(), .rules = {}, .forced = {}}.plan(forward, plan); !s.ok()) return s;
  const Memory workspace(plan.workspace_bytes);
  return plan.backend->run(plan, args, {workspace.data()}, nullptr);
}

Accuracy against_other(const AccuracyCase& one, const AccuracySubject& subject, const AccuracySubject& other,
                       const World& world, const Ran& ran_other, const Outputs& theirs, const Device& device,
                       const InputsKept& inputs) {
  Accuracy row = row_of(one, subject, other.name);
  const auto end = [&](AccuracyEnd how, std::string message) {
    return row.end = how, row.message = std::move(message), row;
  };
  Outputs mine = world.outputs(false);
  const Ran ran = run_into(subject, world, device, mine, inputs);
  for (const Ran* r : {&ran, &ran_other}) {
    const std::string who = r == &ran || r->failed.message.starts_with(other.name) ? "" : join(other.name, ": ");
    if (!r->refused.ok()) return end(AccuracyEnd::unserved, r->refused.message);
    if (!r->failed.ok()) return end(AccuracyEnd::wrong, join(who, r->failed.message));
  }
  row.outcome.figures = differences(mine, theirs);
  for (const bool is_other : {false, true})
    if (const std::string why = wrong_rows(world.problem, is_other ? theirs : mine, row.outcome.mistake); !why.empty())
      return end(AccuracyEnd::wrong, join(is_other ? other.name : subject.name, ": wrong result: ", why));
  return row;
}

// Block lists of a pattern in place of drawn ones.
void fill_lists(const AccuracyCase& one, World& world) {
  BlockSource from;
  if (!one.pattern.empty() && parse(one.pattern, world.problem, from.pattern).ok())
    (void)build_blocks(world.problem, world.args, from, nullptr);  // cannot fail: the lists were made for this problem
}

}  // namespace

// Twice, because naive rounding is one more run.
double reference_seconds(const Problem& p) {
  constexpr double kFlopsASecond = 5e8;  // a modest CPU
  return 2 * cost(p).flops / kFlopsASecond;
}

std::vector<Accuracy> accuracy(const AccuracyCase& one, const std::vector<AccuracySubject>& subjects,
                               const AccuracySubject* other, const Device& device) {
  std::vector<Accuracy> rows;
  if (!one.unserved.empty()) {
    for (const AccuracySubject& s : subjects) {
      Accuracy& row = rows.emplace_back(row_of(one, s, other ? other->name : kReference));
      row.end = AccuracyEnd::unserved, row.message = one.unserved;
    }
    return rows;
  }
  if (other) {
    World world(one.one.problem, one.one.variation);
    fill_lists(one, world);
    const Status ready = run_forward(world);
    Outputs theirs = world.outputs(false);
    const InputsKept inputs(world);
    Ran ran{.refused = ready};
    if (ready.ok()) ran = run_into(*other, world, device, theirs, inputs);
    for (const AccuracySubject& s : subjects)
      rows.push_back(against_other(one, s, *other, world, ran, theirs, device, inputs));
    return rows;
  }
  std::optional<Trial> trial;
  Status ready;
  if (const double seconds = reference_seconds(one.one.problem); seconds > kMostReferenceSeconds) {
    ready = Status::unsupported("not compared: the reference takes about ", std::ceil(seconds / 60),
                                " minutes here; --against another subject needs none");
  } else {
    trial.emplace(one.one);
    fill_lists(one, trial->world);
    ready = trial->prepare();
  }
  std::optional<InputsKept> inputs;
  if (trial) inputs.emplace(trial->world);
  for (const AccuracySubject& s : subjects) rows.push_back(against_reference(one, s, trial, ready, device, inputs));
  return rows;
}

}  // namespace attune
