// SPDX-License-Identifier: Apache-2.0
// Options of a command from a TOML file: each key is the name of an option, without its dashes. What the command line
// gives wins over the file.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/cli.h"

namespace attune {

struct SettingRules {
  std::string section{};         // the options of this group of the help ("Axes") stand in a table, [axes]
  std::string but_not{};         // the option that names the file
  std::string of_another{};      // tables [[of_another]] belong to another command, which reads the same file
  // Options that say the same thing: any of `given` on the command line replaces all of `replaced` in the file. "Axes"
  // stands for the options of the section.
  struct Same { std::vector<std::string> given{}, replaced{}; };
  std::vector<Same> same{};
  Status (*positional)(const std::string& value) = nullptr;  // judges a value of the argument by position
};

struct SettingsFile {
  std::string path{};
  std::map<std::string, int> lines{};  // the line of each option that the file set
  // Sets options of the command. Errors name file, line and key.
  Status read(const std::string& text, const Command&, const SettingRules&);
  // "bench.toml:3: " where a message about an option, such as "--layout: ...", is about one that the file set; else "".
  std::string place(std::string_view message) const;
};

}  // namespace attune
