// What a command says of its part of the command line. CLI11 stands behind it and is seen by cli.cpp alone: it costs
// every file that includes it 7 seconds.
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
  Argument type_name(const std::string&) const;  // of the value, in the help: "FILE"
  Argument group(const std::string&) const;      // the title that it stands under in the help
  Argument show_default() const;                 // in the help
  Argument required() const;
  Argument delimiter(char) const;                // between the values of a list
  Argument one_word() const;                     // a list is one word, and what follows is not of it
  Argument one_of(const std::vector<std::string>&) const;
  Argument between(int least, int most) const;
  Argument between(double least, double most) const;
  Argument needs(Argument) const;
  Argument excludes(Argument) const;
  Argument excludes(const std::string& name) const;
};

struct Command {
  CLI::App* app;
  // Of a string, a number, or a vector of either: those that cli.cpp lists. `value` outlives the command line.
  template <class T>
  Argument add_option(const std::string& name, T& value, const std::string& help) const;
  Argument add_flag(const std::string& name, bool& value, const std::string& help) const;
  void footer(const std::string&) const;
  void callback(std::function<void()>) const;
  std::vector<std::string> given(const std::string& group) const;  // the names that were said on the command line
};
Command add_command(CLI::App&, const std::string& name, const std::string& help);

// The command line as it can be read: for completion.
struct ArgumentText {
  std::vector<std::string> names{};  // "-h", "--device"; none where it goes by position
  std::string position{}, help{}, type{};
  bool takes_value = false;
};
struct CommandText {
  std::string name{}, help{};
  std::vector<ArgumentText> arguments{};
};
std::vector<ArgumentText> arguments_of(const CLI::App&);
std::vector<CommandText> commands_of(const CLI::App&);

}  // namespace attune
