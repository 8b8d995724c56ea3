// SPDX-License-Identifier: Apache-2.0
// `attune doctor`: shows this machine, which backends run on it, which do not and why, and how fast and how steady it
// is. The first thing to look at when a number is surprising.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "machine/cuda/runtime.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/machine.h"
#include "tool/table.h"
#include "tool/timing/ceilings.h"
#include "tool/timing/engine.h"
#include "tool/subjects/workload.h"
#include "tool/text.h"

namespace attune {
namespace {

// The most common problems, one of each kind: training, inference and decode from a cache.
constexpr const char* kTypical[] = {
    "forward f32 b1 h8 q2048 k2048 d64 causal",
    "backward f32 b1 h8 q2048 k2048 d64 causal",
    "forward bf16 b1 h32/8 q4096 k4096 d128 causal",
    "backward bf16 b1 h32/8 q4096 k4096 d128 causal",
    "forward bf16 b8 h32/8 q1 k8192 d128 full paged64",
};

struct Answer {
  std::string problem{}, refusal{};  // an empty refusal means that it runs
};
struct Candidate {
  const Backend* backend = nullptr;
  std::vector<Answer> answers{};
  int taken() const {
    int n = 0;
    for (const Answer& a : answers) n += a.refusal.empty();
    return n;
  }
};

std::vector<Candidate> candidates(const Device& device) {
  std::vector<Candidate> all;
  for (const Backend* b : backends()) {
    Candidate c{.backend = b};
    for (const char* line : kTypical) {
      Problem p;
      if (const Status s = parse(line, p); s.ok()) c.answers.push_back({line, b->supports(p, device).message});
    }
    all.push_back(std::move(c));
  }
  return all;
}

std::string features_text(const Device& cpu) {
  std::string all;
  for (int n = 0; n < int(Feature::count); ++n)
    if (cpu.has(Feature(n))) all += join(all.empty() ? "" : ", ", name(Feature(n)));
  return all.empty() ? "none beyond the baseline" : all;
}

// Reasons to distrust a number measured on this machine.
std::vector<std::string> warnings(const Machine& m) {
  std::vector<std::string> all;
  if (!m.governor.empty() && m.governor != "performance")
    all.push_back(join("the frequency governor is '", m.governor, "': clocks may change while measuring"));
  if (m.cpu.units < m.cpus_online)
    all.push_back(
        join("this process may use ", m.cpu.units, " of ", m.cpus_online, " CPUs: the others may be busy meanwhile"));
  if (m.memory_bytes > 0 && m.memory_free_bytes < 0.1 * m.memory_bytes)
    all.push_back(
        join("only ", bytes_text(m.memory_free_bytes), " of memory is free: large problems may be paged out"));
  return all;
}

Json machine_json(const Machine& m) {
  Json j = {{"cpu", m.cpu.name},           {"features", Json::array()},
            {"threads", m.cpu.units},      {"cpus_online", m.cpus_online},
            {"caches", Json::object()},    {"memory_bytes", m.memory_bytes},
            {"memory_free_bytes", m.memory_free_bytes},
            {"governor", m.governor},      {"system", m.system},
            {"gpu_driver", m.driver},      {"gpus", Json::array()},
            {"no_gpu", m.no_gpu},          {"gpu_code", cuda::built_for()}};
  for (int n = 0; n < int(Feature::count); ++n)
    if (m.cpu.has(Feature(n))) j["features"].push_back(name(Feature(n)));
  for (const CacheLevel& c : m.caches) j["caches"][c.name] = c.bytes;
  for (const Gpu& g : m.gpus)
    j["gpus"].push_back({{"name", g.device.name}, {"arch", g.device.arch}, {"multiprocessors", g.device.units},
                         {"memory_bytes", g.memory_bytes}});
  return j;
}

Json backends_json(const std::vector<Candidate>& all) {
  Json list = Json::array();
  for (const Candidate& c : all) {
    Json answers = Json::array();
    for (const Answer& a : c.answers)
      answers.push_back({{"problem", a.problem}, {"supported", a.refusal.empty()}, {"refusal", a.refusal}});
    list.push_back({{"name", c.backend->name}, {"only_by_name", c.backend->only_by_name}, {"answers", answers}});
  }
  return list;
}

void row(std::string_view what, std::string_view value) { fmt::print("  {:<12} {}\n", what, value); }

void print_machine(const Machine& m) {
  fmt::print("Machine\n");
  row("CPU", m.cpu.name);
  row("features", features_text(m.cpu));
  row("threads", fmt::format("{} of {} CPUs", m.cpu.units, m.cpus_online));
  std::string caches;
  for (const CacheLevel& c : m.caches) caches += join(caches.empty() ? "" : ", ", c.name, " ", bytes_text(c.bytes));
  row("caches", caches.empty() ? "not reported by the system" : caches);
  row("memory", join(bytes_text(m.memory_bytes), ", ", bytes_text(m.memory_free_bytes), " free"));
  row("governor", m.governor.empty() ? "not reported by the system" : m.governor);
  row("system", m.system);
  for (const Gpu& g : m.gpus)
    row("GPU", fmt::format("{}: sm_{}, {} SMs, {}, driver {}", g.device.name, g.device.arch,
                           g.device.units, bytes_text(g.memory_bytes), m.driver));
  if (m.gpus.empty()) row("GPU", m.no_gpu);
  row("GPU code", cuda::built_for().empty() ? "none: switched off, or nvcc was not found" : cuda::built_for());
}

void print_backends(std::string_view device, const std::vector<Candidate>& all) {
  fmt::print("\nBackends on {}, tried on {} typical problems\n", device, std::size(kTypical));
  TextTable t{.columns = {{}, {}, {}}, .margin = 2};
  for (const Candidate& c : all) {
    std::string why, last;  // a repeated refusal stands once: most hold for several problems
    for (const Answer& a : c.answers) {
      if (a.refusal.empty() || a.refusal == last) continue;
      std::string_view reason = last = a.refusal;
      if (reason.starts_with(join(c.backend->name, ": "))) reason.remove_prefix(c.backend->name.size() + 2);
      why += join(why.empty() ? "" : "; ", reason);
    }
    t.rows.push_back({std::string(c.backend->name), fmt::format("{} of {}", c.taken(), c.answers.size()),
                      join(c.backend->only_by_name ? "runs only by name" : "",
                           c.backend->only_by_name && !why.empty() ? "; " : "", why)});
  }
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
}

// One call timed against itself on this machine in its present state. The difference is noise, and no smaller one can
// be claimed.
struct Steadiness {
  double spread = 0;     // relative
  double floor_ns = 0;   // cost of the timer
  std::string problem{}, error{};
};

Steadiness steadiness(const Device& cpu) {
  constexpr const char* kLine = "forward f32 b1 h8 q512 k512 d64 causal";
  Steadiness s{.problem = kLine};
  struct Run {
    Plan plan{};
    Args args{};
    Workspace workspace{};
    Status status{};
  } run;
  Problem p;
  const Planner planner{.device = cpu};
  if (Status bad = parse(kLine, p); !bad.ok()) return s.error = bad.message, s;
  if (Status bad = planner.plan(p, run.plan); !bad.ok()) return s.error = bad.message, s;
  const Workload work(p, Layout::bhsd, 1, Distribution::normal);
  const Memory memory(run.plan.workspace_bytes);
  run.args = work.args;
  run.workspace.data = memory.data();
  const Subject subject{.name = std::string(run.plan.backend->name), .context = &run, .run = [](void* context) {
    Run& r = *static_cast<Run*>(context);
    r.status = r.plan.backend->run(r.plan, r.args, r.workspace, nullptr);
    return r.status.ok();
  }};
  const TimingSettings settings{.max_seconds = 1};
  s.spread = spread(against_itself(subject, settings, host_clock()));
  s.floor_ns = floor_ns(settings, host_clock());
  s.error = run.status.message;
  return s;
}

void print_steadiness(const Steadiness& s) {
  if (!s.error.empty()) return row("A/A spread", s.error);
  row("A/A spread",
      fmt::format("{} % over {}: nothing smaller can be claimed", digits_text(100 * s.spread, 2), s.problem));
  row("empty call", seconds_text(s.floor_ns * 1e-9));
}

void print_rates(const Ceilings& c) {
  fmt::print("\nMeasured, {} thread{}\n", c.threads, c.threads == 1 ? "" : "s");
  const auto ceiling = [](std::string_view what, const Ceiling& x) {
    row(what, x.instruction.empty() ? "no such instruction on this CPU"
                                    : fmt::format("{} GFLOP/s ({})", digits_text(x.gflops), x.instruction));
  };
  ceiling("FMA f32", c.f32);
  ceiling("FMA bf16", c.bf16);
  row("copy", fmt::format("{} GB/s, counting bytes read and written", digits_text(c.copy_gbs)));
}

Json rates_json(const Ceilings& c) {
  return {{"threads", c.threads},
          {"f32", {{"instruction", c.f32.instruction}, {"gflops", c.f32.gflops}}},
          {"bf16", {{"instruction", c.bf16.instruction}, {"gflops", c.bf16.gflops}}},
          {"copy_gbs", c.copy_gbs}};
}

void run(bool measure, Context& context) {
  const Machine m = this_machine();
  const auto on_cpu = candidates(m.cpu);
  const std::string path = tuned_path(m.cpu);
  Tuned tuned;
  const Status rules = load_tuned(m.cpu, tuned);
  const std::string rules_say = path.empty()  ? "none for this CPU: the order of the backends decides"
                                : rules.ok() ? fmt::format("{}: {} rules, {}", path, tuned.rules.size(), tuned.measured)
                                             : rules.message;
  Json j = {{"machine", machine_json(m)},
            {"backends", backends_json(on_cpu)},
            {"gpu_backends", Json::array()},
            {"tuned", {{"file", path}, {"rules", tuned.rules.size()}, {"error", rules.message}}},
            {"warnings", warnings(m)}};
  for (const Gpu& g : m.gpus) j["gpu_backends"].push_back(backends_json(candidates(g.device)));
  if (!context.json) {
    print_machine(m);
    print_backends("the CPU", on_cpu);
    for (const Gpu& g : m.gpus) print_backends(g.device.name, candidates(g.device));
    fmt::print("\nTuned rules\n");
    row("file", rules_say);
    std::fflush(stdout);  // measuring takes a moment
  }
  if (measure) {
    const Ceilings rates = measure_ceilings(m.cpu, m.cpu.units);
    j["rates"] = rates_json(rates);
    if (!context.json) print_rates(rates), std::fflush(stdout);
    const Steadiness steady = steadiness(m.cpu);
    j["steadiness"] = {{"problem", steady.problem},
                       {"aa_spread", steady.spread},
                       {"floor_ns", steady.floor_ns},
                       {"error", steady.error}};
    if (!context.json) print_steadiness(steady);
  }
  if (context.json) fmt::print("{}\n", j.dump(2));
  else for (const std::string& w : warnings(m)) fmt::print("\nNote: {}.\n", w);

  if (!rules.ok()) fail(context, kFailed, join("attune doctor: ", rules.message));
  bool any = false;
  for (const Candidate& c : on_cpu) any = any || (c.taken() && !c.backend->only_by_name);
  if (!any) fail(context, kMachine, "attune doctor: no backend supports any typical problem on this CPU");
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "doctor", "Show this machine, its backends and its measured rates");
  const auto skip = std::make_shared<bool>(false);
  sub.add_flag("--no-measure", *skip, "Skip the rates and the A/A spread, which take time");
  sub.footer(
      "Examples:\n"
      "  attune doctor\n"
      "  attune doctor --no-measure --json");
  sub.callback([skip, &context] { run(!*skip, context); });
}

}  // namespace attune
