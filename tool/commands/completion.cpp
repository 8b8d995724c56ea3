// SPDX-License-Identifier: Apache-2.0
// `attune completion`: prints a completion script for a shell. It is generated from the command line itself, so it
// never lags behind a new option. The three scripts are three printings of one list.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/device.h"
#include "plan/plan.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"

namespace attune {
namespace {

struct Offer {
  std::vector<std::string> names{};  // "--device", "-h"; empty for a positional argument
  std::string help{};
  bool takes_value = false, file = false;
  std::string words{};               // accepted values, if they are a fixed list
};
struct Offers {
  std::string name{}, help{};
  std::vector<Offer> offers{};
};

std::string without_commas(std::string list) {
  list.erase(std::remove(list.begin(), list.end(), ','), list.end());
  return list;
}

// Accepted values of an option or a positional argument.
std::string values_of(const std::string& name) {
  if (name == "--device") return "cpu " + without_commas(known_devices());
  if (name == "--backend") return without_commas(backend_names());
  if (name == "shell") return "bash zsh fish";
  return "";
}

std::vector<Offer> offers_of(const std::vector<ArgumentText>& arguments) {
  std::vector<Offer> all;
  for (const ArgumentText& a : arguments)
    all.push_back({.names = a.names, .help = a.help, .takes_value = a.takes_value, .file = a.type.starts_with("FILE"),
                   .words = values_of(a.names.empty() ? a.position : a.names.back())});
  return all;
}

std::vector<Offers> all_offers(const CLI::App& app) {
  std::vector<Offers> all;
  for (const CommandText& c : commands_of(app)) all.push_back({c.name, c.help, offers_of(c.arguments)});
  return all;
}

// Quotes text in single quotes for a shell. Characters of `also` get a backslash in front.
std::string quote(std::string_view text, std::string_view also = "") {
  std::string s;
  for (const char c : text) {
    if (c == '\'') s += "'\\''";
    else if (c == '\n') s += ' ';
    else if (also.find(c) != also.npos) s += {'\\', c};
    else s += c;
  }
  return "'" + s + "'";
}

std::string flags_of(const std::vector<Offer>& offers) {
  std::string words;
  for (const Offer& o : offers)
    for (const std::string& name : o.names) words += (words.empty() ? "" : " ") + name;
  for (const Offer& o : offers)
    if (o.names.empty() && !o.words.empty()) words += " " + o.words;
  return words;
}

std::string bash(const CLI::App& app) {
  std::string commands = flags_of(offers_of(arguments_of(app))), by_value, by_command;
  for (const Offers& c : all_offers(app)) {
    commands += " " + c.name;
    by_command += fmt::format("      {}) words={} ;;\n", c.name, quote(flags_of(c.offers)));
    for (const Offer& o : c.offers)
      for (const std::string& name : o.names)
        if (o.takes_value) by_value += fmt::format("    {}) words={} ;;\n", quote(c.name + " " + name), quote(o.words));
  }
  return fmt::format(
      "# Load with: source <(attune completion bash)\n"
      "_attune() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W {} -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  case \"${{COMP_WORDS[1]}} $before\" in\n"
      "{}"
      "    *) case \"${{COMP_WORDS[1]}}\" in\n"
      "{}"
      "      esac ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "# Without words, complete file names.\n"
      "complete -o default -F _attune attune\n",
      quote(commands), by_value, by_command);
}

std::string zsh(const CLI::App& app) {
  std::string commands, cases;
  for (const Offers& c : all_offers(app)) {
    commands += fmt::format("    {}\n", quote(c.name + ":" + c.help));
    cases += fmt::format("    {}) _arguments", c.name);
    for (const Offer& o : c.offers) {
      const std::string value = o.words.empty() ? "_files" : "(" + o.words + ")";
      for (const std::string& name : o.names)
        cases += fmt::format(" \\\n      {}", quote(name) + quote("[") + quote(o.help, "[]:\\") +
                                                  quote(o.takes_value ? "]:value:" + value : "]"));
      if (o.names.empty()) cases += fmt::format(" \\\n      {}", quote("*:value:" + value));
    }
    cases += " ;;\n";
  }
  return fmt::format(
      "#compdef attune\n"
      "# Load with: source <(attune completion zsh)\n"
      "_attune() {{\n"
      "  local -a commands\n"
      "  commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $words[1] in\n{}  esac\n"
      "}}\n"
      "(( $+functions[compdef] )) && compdef _attune attune\n",
      commands, cases);
}

std::string fish(const CLI::App& app) {
  std::string text = "# Load with: attune completion fish | source\ncomplete -c attune -f\n";
  for (const Offers& c : all_offers(app)) {
    text += fmt::format("complete -c attune -n __fish_use_subcommand -a {} -d {}\n", c.name, quote(c.help, "\\"));
    for (const Offer& o : c.offers) {
      text += fmt::format("complete -c attune -n '__fish_seen_subcommand_from {}'", c.name);
      for (const std::string& name : o.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (o.takes_value && !o.names.empty()) text += o.words.empty() ? " -r -F" : " -x";
      else if (o.names.empty() && o.words.empty()) text += o.file ? " -F" : " -f";
      if (!o.words.empty()) text += " -a " + quote(o.words);
      text += fmt::format(" -d {}\n", quote(o.help, "\\"));
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "completion", "Print the completion script of a shell");
  const auto shell = std::make_shared<std::string>();
  sub.add_option("shell", *shell, "Write the script for bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  sub.footer(
      "Examples:\n"
      "  source <(attune completion bash)\n"
      "  attune completion zsh > ~/.zfunc/_attune\n"
      "  attune completion fish | source");
  sub.callback([shell, &app, &context] {
    const std::string script = *shell == "bash" ? bash(app) : *shell == "zsh" ? zsh(app) : fish(app);
    if (context.json) fmt::print("{}\n", Json{{"shell", *shell}, {"script", script}}.dump(2));
    else fmt::print("{}", script);
  });
}

}  // namespace attune
