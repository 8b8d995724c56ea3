// SPDX-License-Identifier: Apache-2.0
#include "tool/settings.h"

#include <algorithm>

#include "tool/toml.h"

namespace attune {
namespace {

std::string key_of(const ArgumentText& a) { return a.names.empty() ? a.position : a.names.back().substr(2); }
std::string option_of(const ArgumentText& a) { return a.names.empty() ? a.position : a.names.back(); }

// The value as a word of the command line; false if it is of another kind.
bool word_of(const toml::node& node, std::string& out) {
  if (const auto text = node.value_exact<std::string>()) return out = *text, true;
  if (const auto whole = node.value_exact<int64_t>()) return out = join(*whole), true;
  if (const auto real = node.value_exact<double>()) return out = join(*real), std::isfinite(*real);
  return false;
}

struct SettingsReader {
  SettingsFile& out;
  const Command& command;
  const SettingRules& rules;
  std::vector<ArgumentText> options{};
  std::vector<std::string> replaced{};  // options, and "Axes"

  bool in_section(const ArgumentText& a) const { return a.group == rules.section; }
  bool is_replaced(const ArgumentText& a) const {
    const auto has = [&](const std::string& word) {
      return std::find(replaced.begin(), replaced.end(), word) != replaced.end();
    };
    return command.is_given(option_of(a)) || has(option_of(a)) || (in_section(a) && has(rules.section));
  }

  Status unknown(const toml::node& node, std::string_view key, bool section, std::string_view name) const {
    std::vector<std::string> keys;
    for (const ArgumentText& a : options) {
      if (key_of(a) == key)
        return Status::no(place_of(out.path, node), key, section ? ": does not belong into [" : ": belongs into [",
                          name, "]");
      if (in_section(a) == section) keys.push_back(key_of(a));
    }
    if (const std::string near = near_key(key, keys); !near.empty())
      return Status::no(place_of(out.path, node), key, ": is not a setting", near);
    std::string all = section ? "" : join("[", name, "]");
    for (const std::string& k : keys) all += join(all.empty() ? "" : ", ", k);
    return Status::no(place_of(out.path, node), key, ": is not one of ", all);
  }

  // The words of one key, or why it has none.
  Status words_of(const ArgumentText& a, const toml::node& node, std::vector<std::string>& words) const {
    const std::string key = key_of(a);
    const auto no = [&](const toml::node& at, const auto&... why) {
      return Status::no(place_of(out.path, at), key, ": ", why...);
    };
    if (!a.takes_value) {
      const auto value = node.value_exact<bool>();
      if (!value) return no(node, "accepted is true or false");
      return words.push_back(*value ? "true" : "false"), Status::good();
    }
    const bool is_list = a.type == "LIST", many = is_list || a.names.empty();
    const auto add = [&](const toml::node& one) {
      std::string word;
      if (!word_of(one, word)) return no(one, "accepted is a text in quotes or a number", many ? ", or a list" : "");
      if (word.empty()) return no(one, "the text is empty");
      if (word.find_first_of("\n\r") != word.npos) return no(one, "the text has a line break");
      if (a.names.empty() && rules.positional)
        if (const Status s = rules.positional(word); !s.ok()) return no(one, s.message);
      return words.push_back(word), Status::good();
    };
    const toml::array* const all = node.as_array();
    if (!all) return add(node);
    if (!many) return no(node, "accepted is one value, not a list");
    if (all->empty()) return no(node, "the list is empty");
    for (const toml::node& one : *all)
      if (Status s = add(one); !s.ok()) return s;
    if (!is_list) return Status::good();
    std::string joined;
    for (const std::string& word : words) joined += join(joined.empty() ? "" : ",", word);
    words = {joined};
    return Status::good();
  }

  Status set(std::string_view key, const toml::node& node, bool section, std::string_view name) const {
    const auto it = std::find_if(options.begin(), options.end(), [&](const ArgumentText& a) {
      return key_of(a) == key && in_section(a) == section;
    });
    if (it == options.end()) return unknown(node, key, section, name);
    std::vector<std::string> words;
    if (Status s = words_of(*it, node, words); !s.ok()) return s;
    if (is_replaced(*it)) return Status::good();
    if (const std::string why = command.set(option_of(*it), words); !why.empty())
      return Status::no(place_of(out.path, node), key, ": ", why);
    out.lines[option_of(*it)] = int(node.source().begin.line);
    return Status::good();
  }
};

}  // namespace

Status SettingsFile::read(const std::string& text, const Command& command, const SettingRules& rules) {
  toml::table table;
  if (Status s = parse_toml(text, path, table); !s.ok()) return s;
  SettingsReader reader{*this, command, rules};
  for (const ArgumentText& a : arguments_of(*command.app))
    if (const std::string key = key_of(a); key != "help" && key != rules.but_not) reader.options.push_back(a);
  for (const SettingRules::Same& same : rules.same)
    if (std::any_of(same.given.begin(), same.given.end(), [&](const auto& o) { return command.is_given(o); }))
      reader.replaced.insert(reader.replaced.end(), same.replaced.begin(), same.replaced.end());
  std::string name = rules.section;
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  for (const auto& [key, node] : table) {
    if (key.str() == rules.of_another && node.is_array_of_tables()) continue;
    const toml::table* const section = key.str() == name ? node.as_table() : nullptr;
    if (key.str() == name && !section) return Status::no(place_of(path, node), name, ": accepted is a table, [", name,
                                                         "]");
    if (!section) {
      if (Status s = reader.set(key.str(), node, false, name); !s.ok()) return s;
      continue;
    }
    for (const auto& [inner, value] : *section)
      if (Status s = reader.set(inner.str(), value, true, name); !s.ok()) return s;
  }
  return Status::good();
}

std::string SettingsFile::place(std::string_view message) const {
  const auto it = lines.find(std::string(message.substr(0, message.find_first_of(":, "))));
  return it == lines.end() ? "" : join(path, ":", it->second, ": ");
}

}  // namespace attune
