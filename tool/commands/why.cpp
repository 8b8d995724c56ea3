// SPDX-License-Identifier: Apache-2.0
// `attune why`: shows the measured rows behind the choice of a backend. The tuned file holds them beside its rules, so
// no other file is needed; a rule written by hand has no rows.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "machine/host.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/table.h"
#include "tool/tune/file.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> words{};  // of the line
  std::string device{"cpu"};
};

std::vector<std::string> fields(std::string_view row) {
  std::vector<std::string> all(1);
  for (const char c : row) {
    if (c == '\t') all.emplace_back();
    else all.back() += c;
  }
  return all;
}

void print_rows(const std::vector<std::string>& rows) {
  TextTable t{.columns = {{"problem", Cells::text, TextColumn::Shared::line}, {"timing"}, {"backend"}, {"median"},
                          {"over the baseline"}}};
  for (const std::string& row : rows) t.rows.push_back(fields(row)), t.rows.back().resize(t.columns.size());
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
}

void run(const Asked& asked, Context& context) {
  Problem problem;
  if (!read_problem("attune why", asked.words, problem, context)) return;
  Device device;
  if (const Status s = device_named(asked.device, device); !s.ok())
    return fail(context, exit_of_device(asked.device), join("attune why: ", s.message));
  const std::string path = tuned_path(device);
  TunedFile file;
  Tuned tuned;
  if (const Status s = load_tuned(device, tuned); !s.ok())
    return fail(context, kFailed, join("attune why: ", s.message));
  if (!path.empty()) {
    std::string text;
    Status s = read_tuned_file(path, text);
    if (s.ok()) s = from_text(text, path, file);
    if (!s.ok())
      return fail(context, kFailed, join("attune why: ", s.message));
  }
  ForcedBackend forced;
  if (const Status s = forced_backend({}, forced); !s.ok())
    return fail(context, kUsage, join("attune why: ", s.message));
  Plan plan;
  const Planner planner{.device = device, .rules = tuned.rules, .forced = forced.name};
  if (const Status s = planner.plan(problem, plan); !s.ok()) return fail(context, kFailed, s.message);
  if (forced.by_environment) plan.why = kByEnvironment;
  const Rule* const rule = match(problem, tuned.rules);
  const TunedKey* const key = find(file, problem);
  const std::string line = rule ? line_of(*rule) : "";
  if (context.json) {
    Json j = {{"problem", name(problem)}, {"device", device.name}, {"backend", plan.backend->name},
              {"why", plan.why}, {"file", path}, {"rule", line},
              {"key", key ? name(key->key) : ""}, {"sentence", key ? key->sentence : ""},
              {"rows", Json::array()}};
    if (key)
      for (const std::string& row : key->rows) j["rows"].push_back(fields(row));
    fmt::print("{}\n", j.dump(2));
    return;
  }
  fmt::print("{}\n  {} on {}: {}\n", name(problem), plan.backend->name, device.name, plan.why);
  if (rule && forced.name.empty() && rule->backend != plan.backend->name)
    fmt::print("  the rule at {} names {}, which refuses it:{}\n", rule->source, rule->backend, plan.refused);
  if (path.empty()) fmt::print("  no tuned file for this device; attune tune writes one\n");
  else if (!key) fmt::print("  {} has no rule for this kind of problem\n", path);
  else if (key->rows.empty())
    fmt::print("  {} has no rows for this rule: it was not written by attune tune\n", path);
  if (!key || key->rows.empty()) return;
  fmt::print("  {}: {}\n", name(key->key), key->sentence);
  if (!rule) fmt::print("  shorter than all measured lengths: no rule applies\n");
  print_rows(key->rows);
}

}  // namespace

void add_why(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "why", "Show the measured rows behind the choice of a backend");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("problem", asked->words, "Explain the choice for this problem line").required().type_name("LINE");
  sub.add_option("--device", asked->device,
                 "Plan for cpu, cuda:0, or a GPU by name that need not be in this machine: h200")
      .type_name("NAME")
      .show_default();
  sub.footer(
      "Examples:\n"
      "  attune why \"forward bf16 b2 h32/8 q4096 k4096 d128 causal\" --device h200\n"
      "  attune why \"forward f32 b1 h8 q1024 k1024 d64 full\" --json\n\n" +
      std::string(kLineGrammar));
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
