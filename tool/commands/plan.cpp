// SPDX-License-Identifier: Apache-2.0
// `attune plan`: shows what would run for one problem, and why, on a device that need not be in this machine. Nothing
// is executed: planning is pure, so the answer for an H200 is the same on a laptop.
#include <fmt/format.h>

#include <memory>

#include "core/formula/of_problem.h"
#include "core/work.h"
#include "machine/cpu/kernels.h"
#include "machine/host.h"
#include "machine/known_gpus.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> words{};  // of the line
  std::string device{"cpu"}, backend{};
};

// The instruction set whose loops a CPU plan would run; empty for backends without their own.
std::string isa_of(const Plan& plan) {
  const std::string_view name = plan.backend->name;
  if (plan.device.kind != DeviceKind::cpu || (name != "cpu_forward" && name != "cpu_backward")) return "";
  const CpuKernels* kernels = best_kernels(plan.problem.dtype.q, plan.device.features);
  return kernels ? kernels->isa : "";
}

// What the backend decided beyond tiles and splits, in words; empty if it describes nothing.
std::string choice_of(const Plan& plan) { return plan.backend->describe ? plan.backend->describe(plan) : ""; }

// Splits the planner's sentences, which are lines indented by two spaces.
std::vector<std::string> sentences(std::string_view lines) {
  std::vector<std::string> all;
  while (!lines.empty()) {
    std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    while (line.starts_with(' ')) line.remove_prefix(1);
    if (!line.empty()) all.emplace_back(line);
  }
  return all;
}

std::string device_text(const Device& d) {
  if (d.kind == DeviceKind::cpu) return fmt::format("{}, {} thread{}", d.name, d.units, d.units == 1 ? "" : "s");
  const KnownGpu* const known = d.index < 0 ? known_gpu(d.name) : nullptr;
  const std::string memory = known ? fmt::format(", {} at {} GB/s by its data sheet", bytes_text(known->bytes()),
                                                 known->gbs) : "";
  return fmt::format("{}, sm_{}, {} SMs{}", d.name, d.arch, d.units, memory);
}

Json as_json(const Plan& plan, const std::string& links) {
  const Cost c = cost(plan.problem);
  Json j = {{"problem", name(plan.problem)},
            {"device", plan.device.name},
            {"backend", plan.backend->name},
            {"isa", isa_of(plan)},
            {"kernel", plan.kernel},
            {"tile_q", plan.tile_q},
            {"tile_k", plan.tile_k},
            {"splits", plan.splits},
            {"choice", choice_of(plan)},
            {"workspace_bytes", plan.workspace_bytes},
            {"why", plan.why},
            {"refused", sentences(plan.refused)},
            {"otherwise", links},
            {"cost", {{"pairs", c.pairs}, {"flops", c.flops}, {"bytes", c.bytes}}},
            {"parts", Json::array()}};
  for (const Plan& part : plan.sub_plans) j["parts"].push_back(as_json(part, ""));
  return j;
}

void print(const Plan& plan, const std::string& links, int depth) {
  const std::string margin(size_t(depth) * 2, ' ');
  const auto row = [&](std::string_view what, std::string_view value) {
    fmt::print("{}  {:<10} {}\n", margin, what, value);
  };
  const Cost c = cost(plan.problem);
  const std::string isa = isa_of(plan);
  fmt::print("{}{}\n", margin, name(plan.problem));
  row("backend",
      isa.empty() ? std::string(plan.backend->name) : fmt::format("{} ({} kernels)", plan.backend->name, isa));
  row("why", plan.why);
  if (!depth) row("device", device_text(plan.device));
  const std::string tile_q = plan.tile_q == 1 ? "1 query" : join(plan.tile_q, " queries");
  row("shape", fmt::format("tiles of {} x {}, {}, kernel {}", tile_q, counted(plan.tile_k, "key"),
                           counted(plan.splits, "split"), plan.kernel));
  if (const std::string choice = choice_of(plan); !choice.empty()) row("choice", choice);
  row("workspace", bytes_text(double(plan.workspace_bytes)));
  // A plan has no arrays, so what a formula reads from them counts as visible.
  const bool unknown = has_formula(plan.problem) && formula_of(plan.problem).arrays > 0;
  row("work", fmt::format("{}{} over {}", unknown ? "at most " : "", count_text(c.flops, "FLOP"),
                          count_text(c.pairs, "visible pairs")));
  row("traffic", fmt::format("at least {}, {} FLOP per byte", bytes_text(c.bytes), digits_text(c.flops / c.bytes)));
  for (const std::string& line : sentences(plan.refused)) row("refused", line);
  if (!links.empty()) row("otherwise", links + ", if the arguments of a call do not fit");
  for (const Plan& part : plan.sub_plans) print(part, "", depth + 1);
}

void run(const Asked& asked, Context& context) {
  Problem problem;
  if (!read_problem("attune plan", asked.words, problem, context)) return;
  Device device;
  if (const Status s = device_named(asked.device, device); !s.ok())
    return fail(context, exit_of_device(asked.device), join("attune plan: ", s.message));
  ForcedBackend forced;
  if (const Status s = forced_backend(asked.backend, forced); !s.ok())
    return fail(context, kUsage, join("attune plan: ", s.message));
  Tuned tuned;
  if (const Status s = load_tuned(device, tuned); !s.ok())
    return fail(context, kFailed, join("attune plan: ", s.message));

  Plan plan;
  const Planner planner{.device = device, .rules = tuned.rules, .forced = forced.name};
  const Status status = planner.plan(problem, plan);
  if (forced.by_environment) plan.why = kByEnvironment;
  if (context.json) {
    Json j = status.ok() ? as_json(plan, links_after(plan, planner))
                         : Json{{"problem", name(problem)}, {"device", device.name}, {"backend", nullptr}};
    if (!status.ok()) {
      auto why = sentences(status.message);
      j["error"] = why.front();
      why.erase(why.begin());
      j["refused"] = why;
    }
    fmt::print("{}\n", j.dump(2));
  } else if (status.ok()) {
    print(plan, links_after(plan, planner), 0);
  }
  if (!status.ok()) fail(context, kFailed, status.message);
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "plan", "Show what would run for a problem, and why");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("problem", asked->words, "Plan this problem line").required().type_name("LINE");
  sub.add_option("--device", asked->device,
                 join("Plan for cpu, cpu:<isa>, or one of ", known_devices(), ", which need not be in this machine"))
      .type_name("NAME")
      .show_default();
  sub.add_option("--backend", asked->backend, "Use only this backend; its refusal is an error").type_name("NAME");
  sub.footer(
      "Examples:\n"
      "  attune plan \"forward bf16 b2 h32/8 q4096 k4096 d128 causal\"\n"
      "  attune plan \"backward f32 b1 h8 q1024 k1024 d64 window255,0\" --device cpu:scalar\n"
      "  attune plan \"forward bf16 b1 h8 q1 k65536 d128 full paged64\" --device h200 --json\n\n" +
      std::string(kLineGrammar) +
      "\n"
      "ATTUNE_TUNED names a file of tuned rules, or a folder of them, to plan with. Without --backend, ATTUNE_BACKEND\n"
      "names the backend, as in the library.\n"
      "Exit code 1, with every reason, if no backend supports the problem.");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
