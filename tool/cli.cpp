// SPDX-License-Identifier: Apache-2.0
// The whole command line: the list of commands, what all of them share, and how errors are reported. A usage error is
// one sentence on stderr that ends with the help command to run. CLI11's own wording is kept if it is clear.
#include "tool/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <sstream>
#include <string>

#include "build_info.h"
#include "core/problem_line.h"
#include "core/status.h"
#include "tool/commands/commands.h"
#include "tool/remote/command.h"
#include "tool/record/provenance.h"
#include "tool/table.h"
#include "tool/terminal.h"
#include "tool/text.h"

namespace attune {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> all;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) all.push_back(sub->get_name());
  return all;
}

std::string commands_text(const CLI::App& app) {
  std::string all;
  for (const std::string& name : command_names(app)) all += join(all.empty() ? "" : ", ", name);
  return all;
}

bool is_command(const CLI::App& app, std::string_view word) {
  return !app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; }).empty();
}

// The stream that "-" stands for behind this word: stdout behind an option that names a file to write.
std::string stream_of(std::string_view option) {
  constexpr std::string_view kWritten[] = {"--out", "--markdown", "--junit", "--csv", "--html"};
  return std::count(std::begin(kWritten), std::end(kWritten), option) ? "/dev/stdout" : "/dev/stdin";
}

// `attune help bench` is `attune bench --help`, and `attune version` is `attune --version`. "-" is stdin, or stdout
// behind an option that names a file to write.
std::vector<std::string> usual(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  for (size_t n = 0; n < words.size() && words[n] != "--"; ++n) {
    const std::string option = words[n].substr(0, words[n].find('='));
    if (words[n] == "-") words[n] = stream_of(n ? words[n - 1] : "");
    else if (option.starts_with("--") && words[n] == option + "=-") words[n] = join(option, "=", stream_of(option));
  }
  if (words.size() == 1 && (words[0] == "help" || words[0] == "version")) return {"--" + words[0]};
  if (words.size() == 2 && (words[0] == "help" || words[0] == "--help")) return {words[1], "--help"};
  return words;
}

// "attune plan", or "attune" if no command was recognised.
std::string called(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? "attune" : join("attune ", parsed.front()->get_name());
}

// Finds an option such as "--out=" whose shell variable was unset: CLI11 would take the next word as its value.
// So it would of a list without an item: "--backend ,".
std::string without_value(const std::vector<std::string>& words) {
  const auto is_empty = [](std::string_view value) { return value.find_first_not_of(',') == value.npos; };
  for (size_t n = 0; n < words.size() && words[n] != "--"; ++n) {
    const std::string_view word = words[n];
    const size_t equals = word.find('=');
    if (word.starts_with("--") && equals != word.npos && is_empty(word.substr(equals + 1))) return words[n];
    if (n && !word.empty() && is_empty(word) && words[n - 1].starts_with("--")) return join(words[n - 1], " ", word);
  }
  return "";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> all(known.begin(), known.end());
  const std::string_view best = closest_word(word, all);
  return best.empty() ? "" : join("; did you mean ", best, "?");
}

// A suggestion for the first word that the command does not take, if it is a misspelt option.
std::string did_you_mean(const std::vector<std::string>& extra, const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  if (extra.empty() || !extra.front().starts_with("--")) return "";
  std::vector<std::string> known;
  for (const ArgumentText& a : arguments_of(parsed.empty() ? app : *parsed.front()))
    known.insert(known.end(), a.names.begin(), a.names.end());
  return did_you_mean(extra.front().substr(0, extra.front().find('=')), known);
}

std::function<std::string(const std::string&)> whole_number(int64_t least, int64_t most) {
  return [least, most](const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
    return good ? std::string() : join("'", text, "' is not a whole number from ", least, " to ", most);
  };
}

// The check that every option has from its type. between() replaces it, because it knows more.
constexpr const char* kOfType = "type";

std::string number_check(const std::string& text) {
  double value = 0;
  return CLI::detail::lexical_cast(text, value) ? "" : join("'", text, "' is not a number");
}

std::string flag_check(const std::string& text) {
  return text == "true" || text == "false" ? "" : join("'", text, "' is not true or false");
}

// CLI11's sentence in our words, where it is not clear: who, what was given, what is accepted.
std::string in_our_words(std::string text) {
  while (!text.empty() && (text.back() == '.' || text.back() == '\n')) text.pop_back();
  const auto parts = [&](std::string_view between, std::string& before, std::string& after) {
    const size_t at = text.find(between);
    if (at == text.npos) return false;
    return before = text.substr(0, at), after = text.substr(at + between.size()), true;
  };
  std::string name, rest;
  if (parts(": At Most 1 required but received ", name, rest))
    return join(name, ": given ", rest, " times; it is accepted once");
  if (parts(" requires ", name, rest) && name.find(' ') == name.npos)
    return join(name, ": given without ", rest, ", which it needs");
  if (parts(" excludes ", name, rest) && name.find(' ') == name.npos)
    return join(name, ": given with ", rest, "; only one of them is accepted");
  if (text.ends_with(" missing") && parts(": 1 required ", name, rest))
    return join(name, ": its value is missing: ", rest.substr(0, rest.rfind(' ')));
  return text;
}

std::string sentence(const CLI::App& app, const CLI::ParseError& error) {
  auto extra = app.remaining(true);
  std::erase(extra, "--");  // it only tells that options have ended
  // CLI11 reports missing arguments first, but a misspelt option is the more likely cause.
  if (dynamic_cast<const CLI::ExtrasError*>(&error) || (!extra.empty() && extra.front().starts_with("-"))) {
    const std::string_view what = !extra.empty() && extra.front().starts_with("-") ? "' is not an option"
                                                                                  : "' is an unexpected argument";
    return join("'", extra.empty() ? "" : extra.front(), what, did_you_mean(extra, app));
  }
  return in_our_words(error.what());
}

// CLI11's own text beside an option, without the lists of options that it needs or excludes: an error names them.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = option->get_type_name().empty() ? "" : " " + option->get_type_name();
    text = text.substr(0, text.find(':'));  // not the check behind it, such as ":INT in [1 - 9]"
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
    return option->get_required() ? text + " (required)" : text;
  }
};

// The help, with its paragraphs broken anew to this width. A command that does not fit continues behind a backslash.
std::string help_text(const std::string& help, int width) {
  std::vector<std::string> lines(1);
  for (const char c : help) {
    if (c != '\n') lines.back() += c;
    else lines.emplace_back();
  }
  std::string out;
  for (size_t n = 0; n < lines.size(); ++n) {
    std::string line = lines[n];
    const auto is_prose = [](const std::string& s) { return !s.empty() && s[0] != ' '; };
    while (is_prose(line) && lines[n].size() > 90 && n + 1 < lines.size() && is_prose(lines[n + 1]))
      line += " " + lines[++n];
    std::string text = wrapped(line, width);
    if (line.starts_with("  attune ") && text != line) {
      text = wrapped(line, width - 4);
      for (size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 5) text.replace(at, 1, " \\\n  ");
    }
    out += text + (n + 1 < lines.size() ? "\n" : "");
  }
  return out;
}

int parse_and_run(CLI::App& app, Context& context, std::vector<std::string> words) {
  const auto usage = [&](std::string_view who, std::string_view what) {
    std::fflush(stdout);
    const bool asks = std::string_view(what).ends_with('?');
    std::fputs(join(who, ": ", what, asks ? " See " : "; see ", who, " --help\n").c_str(), stderr);
    return int(kUsage);
  };
  if (words.empty()) return usage("attune", join("no command given; the commands are ", commands_text(app)));
  const std::string first = words.front();
  for (const std::string& word : words)  // a file of such a name would break the sentences about it
    if (word.find_first_of("\n\r") != word.npos)
      return usage(is_command(app, first) ? join("attune ", first) : "attune",
                   join("'", in_one_line(word), "' has a line break; accepted are values of one line"));
  const bool alone = first == "help" || first == "--help" || first == "-h" || first == "version" ||
                     first == "--version" || first == "-V";
  if (alone && words.size() > 1) return usage("attune", join("'", words[1], "' is an unexpected argument"));
  if (!first.starts_with('-') && !is_command(app, first))
    return usage("attune", join("'", first, "' is not a command; the commands are ", commands_text(app),
                                did_you_mean(first, command_names(app))));
  if (const std::string word = without_value(words); !word.empty())
    return usage(first.starts_with('-') ? "attune" : join("attune ", first), join("'", word, "' has no value"));
  const auto for_programs = [](const std::string& w) { return w == "--json" || w.starts_with("--format"); };
  if (first == "completion" || std::any_of(words.begin(), words.end(), for_programs)) keep_lines_whole();
  try {
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app.parse(std::move(words));
    if (app.get_subcommands().empty())
      return usage("attune", join("no command given; the commands are ", commands_text(app)));
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream out;
    app.exit(asked, out, out);
    const int width = terminal_width(STDOUT_FILENO);
    std::fputs(help_text(out.str(), width ? width : 120).c_str(), stdout);  // it does not throw
  } catch (const CLI::ParseError& error) {
    return usage(called(app), sentence(app, error));
  } catch (const std::bad_alloc&) {
    fail(context, kMachine, join(called(app), ": not enough memory on this machine"));
  } catch (const std::exception& error) {
    if (!std::ferror(stdout)) fail(context, kMachine, join(called(app), ": ", error.what()));
  }
  if (std::fflush(stdout) || std::ferror(stdout)) fail(context, kMachine, "attune: stdout cannot be written");
  return context.exit_code;
}

}  // namespace

Argument Argument::type_name(const std::string& name) const { return option->type_name(name), *this; }
Argument Argument::group(const std::string& title) const { return option->group(title), *this; }
Argument Argument::show_default() const { return option->capture_default_str(), *this; }
Argument Argument::required() const { return option->required(), *this; }
Argument Argument::delimiter(char c) const { return option->delimiter(c), *this; }
Argument Argument::one_word() const { return option->allow_extra_args(false), *this; }
Argument Argument::one_of(const std::vector<std::string>& all) const {
  std::string names;
  for (const std::string& name : all) names += join(names.empty() ? "" : ", ", name);
  const auto known = [all, names](const std::string& text) {
    return std::find(all.begin(), all.end(), text) != all.end() ? std::string() : not_one_of(text, names);
  };
  return option->check(known), *this;
}
Argument Argument::between(int least, int most) const {
  option->get_validator(kOfType)->active(false);
  return option->check(whole_number(least, most)), *this;
}
Argument Argument::between(double least, double most) const {
  option->get_validator(kOfType)->active(false);
  // Not CLI::Range: a NaN fails both of its comparisons and is accepted.
  const auto within = [least, most](const std::string& text) {
    double value = 0;
    const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return good ? std::string() : join("'", text, "' is not a number from ", least, " to ", most);
  };
  return option->check(within), *this;
}
Argument Argument::needs(Argument other) const { return option->needs(other.option), *this; }
Argument Argument::excludes(Argument other) const { return option->excludes(other.option), *this; }
Argument Argument::excludes(const std::string& name) const { return option->excludes(name), *this; }

Command add_command(CLI::App& app, const std::string& name, const std::string& help) {
  return {app.add_subcommand(name, help)};
}
template <class T>
Argument Command::add_option(const std::string& name, T& value, const std::string& help) const {
  CLI::Option* const option = app->add_option(name, value, help);
  // An unset shell variable must neither pass as an option that was not given nor take the next option as its value.
  // Only --options may be empty.
  if (std::is_same_v<T, std::string> && name != "--options")
    option->check([](const std::string& text) {
      if (text.empty()) return std::string("the value is empty");
      return text.starts_with("--") ? join("'", text, "' is an option, not a value; write a file as ./", text) : "";
    });
  if (std::is_same_v<T, uint32_t>) option->check(whole_number(0, UINT32_MAX));
  if (std::is_same_v<T, int> || std::is_same_v<T, std::vector<int>>)
    option->check(whole_number(INT32_MIN, INT32_MAX), "", kOfType);
  if (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>)
    option->check(number_check, "", kOfType);
  return {option};
}
template Argument Command::add_option(const std::string&, std::string&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<std::string>&, const std::string&) const;
template Argument Command::add_option(const std::string&, int&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<int>&, const std::string&) const;
template Argument Command::add_option(const std::string&, uint32_t&, const std::string&) const;
template Argument Command::add_option(const std::string&, double&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::optional<double>&, const std::string&) const;
Argument Command::add_flag(const std::string& name, bool& value, const std::string& help) const {
  CLI::Option* const option = app->add_flag(name, value, help);
  option->check(flag_check);
  return {option};
}
void Command::footer(const std::string& text) const { app->footer(text); }
void Command::callback(std::function<void()> run) const { app->callback(std::move(run)); }
std::vector<std::string> Command::given(const std::string& group) const {
  std::vector<std::string> all;
  for (const CLI::Option* option : app->get_options())
    if (option->get_group() == group && option->count()) all.push_back(option->get_name());
  return all;
}

bool Command::is_given(const std::string& name) const { return app->get_option(name)->count() > 0; }
std::string Command::set(const std::string& name, const std::vector<std::string>& words) const {
  CLI::Option* const option = app->get_option(name);
  try {
    option->clear();
    for (const std::string& word : words) option->add_result(word);
    option->run_callback();
  } catch (const CLI::ParseError& error) {
    const std::string text = in_our_words(error.what()), who = name + ": ";
    return text.starts_with(who) ? text.substr(who.size()) : text;
  }
  return "";
}

std::vector<ArgumentText> arguments_of(const CLI::App& app) {
  std::vector<ArgumentText> all;
  for (const CLI::Option* option : app.get_options()) {
    ArgumentText a{.position = option->get_name(true), .help = option->get_description(),
                   .type = option->get_type_name(), .group = option->get_group(),
                   .takes_value = option->get_items_expected_max() > 0};
    for (const std::string& s : option->get_snames()) a.names.push_back("-" + s);
    for (const std::string& s : option->get_lnames()) a.names.push_back("--" + s);
    all.push_back(std::move(a));
  }
  return all;
}
std::vector<CommandText> commands_of(const CLI::App& app) {
  std::vector<CommandText> all;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    all.push_back({sub->get_name(), sub->get_description(), arguments_of(*sub)});
  return all;
}

void fail(Context& context, Exit code, std::string_view sentence) {
  std::fflush(stdout);  // earlier output comes first
  std::fputs(join(sentence, "\n").c_str(), stderr);
  if (context.exit_code == kOk) context.exit_code = code;
}

void add_commands(CLI::App& app, Context& context) {
  app.name("attune");
  app.description("Attention, tuned to your machine: inspect the machine, plan, check and measure attention.");
  app.set_version_flag("-V,--version", join("attune ", build::kVersion), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.formatter(std::make_shared<HelpFormat>());
  app.get_formatter()->column_width(32);
  app.require_subcommand(0, 1);  // parse_and_run() reports a missing command
  app.footer(
      "A problem is one line of text, the same everywhere:\n"
      "  forward bf16 b2 h32/8 q4096 k4096 d128 causal\n"
      "  pass dtype batch heads[/KV heads] queries keys dim[/dim of v] mask [options] [ragged|paged#] [: variant]\n\n"
      "Examples:\n"
      "  attune doctor\n"
      "  attune plan \"forward bf16 b2 h32/8 q4096 k4096 d128 causal\"\n"
      "  attune parity --device cpu\n"
      "  attune bench --len 512-8192*2 --json > records.jsonl\n"
      "  attune report records.jsonl --out report.html\n\n"
      "Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 the machine lacks something, 4 the measurements do not answer "
      "(compare), 128 + n ended by signal n.");

  add_doctor(app, context);
  add_plan(app, context);
  add_features(app, context);
  add_memory(app, context);
  add_model(app, context);
  add_parity(app, context);
  add_bench(app, context);
  add_verify(app, context);
  add_store(app, context);
  add_history(app, context);
  add_tune(app, context);
  add_why(app, context);
  add_compare(app, context);
  add_bars(app, context);
  add_report(app, context);
  add_serve(app, context);
  add_scaling(app, context);
  add_cost(app, context);
  add_profile(app, context);
  add_remote(app, context);
  add_completion(app, context);
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; }))
    if (!sub->get_option_no_throw("--json")) Command{sub}.add_flag("--json", context.json, "Answer in JSON on stdout");
}

}  // namespace attune

int attune_tool_main(int argc, char** argv) {
  attune::keep_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its write, with a sentence
  const attune::ShownOutput output;
  attune::Context context{.terminal = isatty(STDOUT_FILENO) == 1,
                          .command = attune::command_text({argv, argv + argc})};
  CLI::App app;
  attune::add_commands(app, context);
  return attune::parse_and_run(app, context, attune::usual(argc, argv));
}
