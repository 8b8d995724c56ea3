// SPDX-License-Identifier: Apache-2.0
// `attune features`: shows what every backend serves, by calling `supports` only, beside what three FlashAttention
// releases document. Their columns list what their public interfaces accept: flash-attn 1.0.9, 2.8 and the Hopper
// package 3.0 (beta).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "plan/plan.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/machine.h"
#include "verify/cases/cases.h"

namespace attune {
namespace {

struct Asked { std::string device; };

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

// A row of the table: a topic of the conformance cases, or a key source.
struct Row {
  std::string_view word;
  const Topic* topic;
  KeySource keys = KeySource::linear;
};

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const Topic& t : topics()) all.push_back({t.word, &t});
  all.push_back({"ragged", &topics()[0], KeySource::ragged});
  all.push_back({"paged", &topics()[0], KeySource::paged});
  return all;
}

// f: forward, fb: both passes, -: not available. Dtypes are f16 and bf16 throughout, and e4m3 in the forward of FA3.
struct Others { std::string_view word, fa1, fa2, fa3; };
constexpr Others kOthers[] = {
    {"plain", "fb", "fb", "fb"},     {"causal", "fb", "fb", "fb"},   {"window", "-", "fb", "fb"},
    {"top_left", "fb", "-", "-"},    {"blocks", "fb", "-", "-"},     {"gqa", "-", "fb", "fb"},
    {"dim_v", "-", "-", "f"},        {"repro=run", "fb", "fb", "fb"}, {"softcap", "-", "fb", "fb"},
    {"alibi", "-", "fb", "-"},       {"dropout", "fb", "fb", "-"},   {"append", "-", "f", "f"},
    {"rotary", "-", "f", "f"},       {"rotary_half", "-", "f", "f"}, {"descale", "-", "-", "f"},
    {"ragged", "fb", "fb", "fb"},    {"paged", "-", "f", "f"},
};

Others others(std::string_view word) {
  const auto at = std::find_if(std::begin(kOthers), std::end(kOthers), [&](const Others& o) { return o.word == word; });
  return at == std::end(kOthers) ? Others{word, "-", "-", "-"} : *at;
}

Status serves(const Backend& b, const Device& d, const Row& row, Pass pass, DType dtype) {
  const Problem p = plainest(*row.topic, pass, dtype, row.keys);
  if (Status s = valid(p); !s.ok()) return s;
  return b.supports(p, d);
}

std::string dtypes(const Backend& b, const Device& d, const Row& row, Pass pass) {
  std::string all;
  int count = 0;
  for (const DType t : kTypes)
    if (serves(b, d, row, pass, t).ok()) all += join(all.empty() ? "" : " ", name(t)), ++count;
  return count == int(std::size(kTypes)) ? "all" : count ? all : "-";
}

struct Column { const Backend* backend; Pass pass; };

std::vector<Column> columns(const Device& d) {
  std::vector<Column> all;
  for (const Backend* b : backends())
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      bool any = false;
      for (const Row& row : rows())
        for (const DType t : kTypes) any |= serves(*b, d, row, pass, t).ok();
      if (any) all.push_back({b, pass});
    }
  return all;
}

// Prints the backends of each variant that occurs in the conformance cases.
void print_variants(const Device& d) {
  std::map<std::string_view, std::vector<std::string_view>> by_word;
  const std::vector<Case> all = cases();
  for (const Case& c : all)
    for (const Backend* b : backends()) {
      if (!c.problem.variant.text[0] || b->only_by_name || !b->supports(c.problem, d).ok()) continue;
      auto& names = by_word[word(c.problem.variant)];
      if (std::find(names.begin(), names.end(), b->name) == names.end()) names.push_back(b->name);
    }
  for (const auto& [variant, names] : by_word) fmt::print("  : {:<10} {}\n", variant, fmt::join(names, ", "));
}

bool no_gpu_code(const Device& d) { return d.kind == DeviceKind::cuda && cuda::built_for().empty(); }

void print(std::string_view word, const Device& d) {
  const std::vector<Column> all = columns(d);
  fmt::print("{} ({})\n", word, d.name);
  if (no_gpu_code(d)) fmt::print("  this build has no GPU code, so GPU backends are missing here\n");
  if (all.empty()) return fmt::print("  no backend serves this device\n\n");
  fmt::print("  {:<12}", "");
  for (const Column& c : all) fmt::print(" {:<12}", c.backend->name);
  fmt::print(" {:<4} {:<4} {}\n  {:<12}", "FA1", "FA2", "FA3", "");
  for (const Column& c : all) fmt::print(" {:<12}", name(c.pass));
  fmt::print("\n");
  for (const Row& row : rows()) {
    fmt::print("  {:<12}", row.word);
    for (const Column& c : all) fmt::print(" {:<12}", dtypes(*c.backend, d, row, c.pass));
    const Others o = others(row.word);
    fmt::print(" {:<4} {:<4} {}\n", o.fa1, o.fa2, o.fa3);
  }
  print_variants(d);
  fmt::print("\n");
}

Json as_json(std::string_view word, const Device& d) {
  Json cells = Json::array();
  for (const Backend* b : backends())
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (const Row& row : rows())
        for (const DType t : kTypes) {
          const Status s = serves(*b, d, row, pass, t);
          Json cell = {{"backend", b->name},
                       {"pass", name(pass)},
                       {"feature", row.word},
                       {"dtype", name(t)},
                       {"served", s.ok()}};
          if (!s.ok()) cell["refusal"] = s.message;
          cells.push_back(std::move(cell));
        }
  Json answer = {{"device", word}, {"name", d.name}, {"cells", cells}};
  if (d.kind == DeviceKind::cuda) answer["gpu_code"] = cuda::built_for();
  return answer;
}

void features(const Asked& asked, Context& context) {
  std::vector<std::string> words{"cpu", "a100", "h200"};
  if (!asked.device.empty()) words = {asked.device};
  Json document = {{"devices", Json::array()}, {"flash_attention", Json::array()}};
  for (const std::string& word : words) {
    Device d;
    if (Status s = device_named(word, d); !s.ok())
      return fail(context, exit_of_device(word), join("attune features: ", s.message));
    if (context.json) document["devices"].push_back(as_json(word, d));
    else print(word, d);
  }
  if (!context.json)
    return fmt::print(
        "Cells list the dtypes served, of f32, f16 and bf16. FlashAttention 1.0.9, 2.8 and 3.0 (beta): f forward,\n"
        "b backward, f16 and bf16. After a colon: a variant and the backends that serve it. `attune plan` shows why "
        "a\nproblem is refused.\n");
  for (const Row& row : rows()) {
    const Others o = others(row.word);
    document["flash_attention"].push_back({{"feature", row.word}, {"1.0.9", o.fa1}, {"2.8", o.fa2}, {"3.0", o.fa3}});
  }
  fmt::print("{}\n", document.dump(2));
}

}  // namespace

void add_features(CLI::App& app, Context& context) {
  auto asked = std::make_shared<Asked>();
  const Command command = add_command(
      app, "features", "Show the options, passes and dtypes of every backend, beside FlashAttention 1, 2 and 3");
  command.add_option("--device", asked->device,
                     "Show only this device: cpu, cpu:scalar, h200, ...; default cpu, a100 and h200");
  command.footer("Examples:\n  attune features\n  attune features --device cpu:scalar --json");
  command.callback([asked, &context] { features(*asked, context); });
}

}  // namespace attune
