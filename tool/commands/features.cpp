// SPDX-License-Identifier: Apache-2.0
// `attune features`: shows what every backend serves, by calling `supports` only, beside what three FlashAttention
// releases document. Their columns list what their public interfaces accept: flash-attn 1.0.9, 2.8 and the Hopper
// package 3.0 (beta).
#include <fmt/format.h>
#include <unistd.h>

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
#include "tool/table.h"
#include "verify/cases/cases.h"

namespace attune {
namespace {

struct Asked {
  std::string device{};
  bool all = false;
};

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

struct Server { const Backend* backend; Pass pass; };

std::vector<Server> servers(const Device& d) {
  std::vector<Server> all;
  for (const Backend* b : backends())
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      bool any = false;
      for (const Row& row : rows())
        for (const DType t : kTypes) any |= serves(*b, d, row, pass, t).ok();
      if (any) all.push_back({b, pass});
    }
  return all;
}

// What one backend or library serves of these features: "all but softcap, paged", "plain, causal; f16 bf16: sink".
// `words` holds a feature and the dtypes served.
std::string served_text(const std::vector<std::pair<std::string_view, std::string>>& words) {
  std::vector<std::string> dtypes;
  for (const auto& [word, types] : words)
    if (types != "-" && std::find(dtypes.begin(), dtypes.end(), types) == dtypes.end()) dtypes.push_back(types);
  const auto list = [&](const auto& wanted) {
    std::string text;
    for (const auto& [word, types] : words)
      if (wanted(types)) text += join(text.empty() ? "" : ", ", word);
    return text;
  };
  if (dtypes.size() == 1) {
    const std::string head = dtypes[0] == "all" ? "" : dtypes[0] + ": ", rest = list([](auto& t) { return t == "-"; });
    const std::string those = list([](auto& t) { return t != "-"; });
    if (rest.empty()) return head + "all";
    return rest.size() < those.size() ? head + "all but " + rest : head + those;
  }
  std::string text;
  for (const std::string& types : dtypes)
    text += join(text.empty() ? "" : "; ", types == "all" ? "" : types + ": ",
                 list([&](auto& t) { return t == types; }));
  return text;
}

bool is_variant(const Row& row) {
  return plainest(*row.topic, Pass::forward, DType::f32, row.keys).variant.text[0] != 0;
}

// A table with one line per server and pass, or one for both passes if they serve the same.
class Differences {
 public:
  template <class DtypesOf>
  void add(std::string_view who, Pass pass, DtypesOf&& dtypes_of) {
    std::vector<std::pair<std::string_view, std::string>> words;
    for (const Row& row : rows())
      if (!is_variant(row)) words.emplace_back(row.word, dtypes_of(row));
    const std::string text = served_text(words);
    if (text.empty()) return;
    if (auto& all = table_.rows; !all.empty() && all.back()[0] == who && all.back()[2] == text) all.back()[1] = "both";
    else all.push_back({std::string(who), std::string(name(pass)), text});
  }
  void print() const { fmt::print("{}", to_text(table_, terminal_width(STDOUT_FILENO))); }

 private:
  TextTable table_{.columns = {{}, {"pass"}, {"serves"}}, .margin = 2};
};

void print_differences(const Device& d) {
  Differences all;
  for (const Server& s : servers(d))
    all.add(s.backend->name, s.pass, [&](const Row& row) { return dtypes(*s.backend, d, row, s.pass); });
  all.print();
}

void print_flash_attention() {
  Differences all;
  for (const auto& [who, of] : {std::pair("1.0.9", &Others::fa1), {"2.8", &Others::fa2}, {"3.0 (beta)", &Others::fa3}})
    for (const auto& [pass, letter] : {std::pair(Pass::forward, 'f'), {Pass::backward, 'b'}})
      all.add(who, pass, [of = of, letter = letter](const Row& row) -> std::string {
        return (others(row.word).*of).find(letter) == std::string_view::npos ? "-" : "f16 bf16";
      });
  fmt::print("FlashAttention\n");
  all.print();
}

// Every feature beside every backend.
void print_all(const Device& d) {
  TextTable t{.columns = {{"feature"}}, .margin = 2};
  const std::vector<Server> all = servers(d);
  for (const Server& s : all) t.columns.push_back({join(s.backend->name, " ", name(s.pass))});
  for (const char* const who : {"FA1", "FA2", "FA3"}) t.columns.push_back({who});
  for (const Row& row : rows()) {
    auto& cells = t.rows.emplace_back();
    cells.emplace_back(row.word);
    for (const Server& s : all) cells.push_back(dtypes(*s.backend, d, row, s.pass));
    const Others o = others(row.word);
    for (const std::string_view who : {o.fa1, o.fa2, o.fa3}) cells.emplace_back(who);
  }
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
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

void print(std::string_view word, const Device& d, const Asked& asked) {
  fmt::print("{} ({})\n", word, d.name);
  if (no_gpu_code(d)) fmt::print("  this build has no GPU code, so GPU backends are missing here\n");
  if (servers(d).empty()) return fmt::print("  no backend serves this device\n\n");
  if (asked.all) print_all(d);
  else print_differences(d);
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
    else print(word, d, asked);
  }
  if (!context.json) {
    std::string words;
    for (const Row& row : rows())
      if (!is_variant(row)) words += join(words.empty() ? "" : ", ", row.word);
    if (asked.all)
      return fmt::print("Cells list the dtypes served, of f32, f16 and bf16. FlashAttention 1.0.9, 2.8 and 3.0 (beta): "
                        "f forward, b backward, f16 and bf16. After a colon: a variant and the backends that serve "
                        "it. `attune plan` shows why a problem is refused.\n");
    print_flash_attention();
    return fmt::print("\nAll: {}. Without dtypes: f32, f16 and bf16. After a colon: a variant and the backends that "
                      "serve it. `--all` shows every feature beside every backend, `attune plan` why a problem is "
                      "refused.\n", words);
  }
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
  command.add_flag("--all", asked->all, "Show every feature beside every backend, not only what differs");
  command.footer("Examples:\n  attune features\n  attune features --device cpu:scalar --json");
  command.callback([asked, &context] { features(*asked, context); });
}

}  // namespace attune
