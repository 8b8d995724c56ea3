// SPDX-License-Identifier: Apache-2.0
// How a command declares its part of the command line. CLI11 does the work, but only cli.cpp includes it: its header
// costs 7 seconds of compile time per file.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attune {

// An option, a flag or an argument by position.
struct Argument {
  CLI::Option* option;
  Argument type_name(const std::string&) const;  // name of the value in the help: "FILE"
  Argument group(const std::string&) const;      // section of the help
  Argument show_default() const;                 // shows the default in the help
  Argument required() const;
  Argument delimiter(char) const;                // separator between the values of a list
  Argument one_word() const;                     // the list is one word; the next word does not belong to it
  Argument one_of(const std::vector<std::string>&) const;
  Argument between(int least, int most) const;
  Argument between(double least, double most) const;
  Argument needs(Argument) const;
  Argument excludes(Argument) const;
  Argument excludes(const std::string& name) const;
};

struct Command {
  CLI::App* app;
  // T is a string, a number, or a vector of either: the types that cli.cpp instantiates. `value` must outlive `app`.
  template <class T>
  Argument add_option(const std::string& name, T& value, const std::string& help) const;
  Argument add_flag(const std::string& name, bool& value, const std::string& help) const;
  void footer(const std::string&) const;
  void callback(std::function<void()>) const;
  std::vector<std::string> given(const std::string& group) const;  // names of this group that have a value
  bool is_given(const std::string& name) const;
  // Gives an option these words, as the command line would; "" or why it does not accept them.
  std::string set(const std::string& name, const std::vector<std::string>& words) const;
};
Command add_command(CLI::App&, const std::string& name, const std::string& help);

// The command line as data, for the completion scripts.
struct ArgumentText {
  std::vector<std::string> names{};  // "-h", "--device"; empty for a positional argument
  std::string position{}, help{}, type{}, group{};
  bool takes_value = false;
};
struct CommandText {
  std::string name{}, help{};
  std::vector<ArgumentText> arguments{};
};
std::vector<ArgumentText> arguments_of(const CLI::App&);
std::vector<CommandText> commands_of(const CLI::App&);

}  // namespace attune
