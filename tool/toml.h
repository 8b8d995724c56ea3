// SPDX-License-Identifier: Apache-2.0
// A table of a TOML file whose keys are taken one by one: what is left over is a mistake. Errors name file, line and
// key, and the key that was probably meant. toml++ costs seconds of compile time, so only readers include this.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "core/problem_line.h"
#include "core/status.h"

namespace attune {

// "; did you mean rows?", or "" if no key is near.
inline std::string near_key(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> all(known.begin(), known.end());
  const std::string_view best = closest_word(word, all);
  return best.empty() ? "" : join("; did you mean ", best, "?");
}

// "bars.toml:7: "
inline std::string place_of(std::string_view file, const toml::node& node) {
  return join(file, ":", node.source().begin.line, ": ");
}

// Every dot of a key is one more table in a table, and toml++ limits values only: a deep one overflows the stack.
inline Status is_shallow(std::string_view text, std::string_view file) {
  constexpr int kMostDots = 100;
  int line = 1, dots = 0;
  for (const char c : text) {
    if (c == '\n') ++line, dots = 0;
    if (c == '.' && ++dots > kMostDots) return Status::no(file, ":", line, ": has more than ", kMostDots, " dots");
  }
  return Status::good();
}

inline Status parse_toml(const std::string& text, std::string_view file, toml::table& out) {
  if (Status s = is_shallow(text, file); !s.ok()) return s;
  toml::parse_result parsed = toml::parse(text);
  if (!parsed)
    return Status::no(file, ":", parsed.error().source().begin.line, ": ", parsed.error().description());
  out = std::move(parsed).table();
  return Status::good();
}

struct TomlTable {
  const toml::table& table;
  std::string_view file;
  std::vector<std::string> known{};
  Status status = Status::good();

  template <class... Part>
  void wrong(const toml::node& node, std::string_view key, const Part&... why) {
    if (status.ok()) status = Status::no(place_of(file, node), key, ": ", why...);
  }
  const toml::node* take(std::string_view key) {
    known.emplace_back(key);
    return table.get(key);
  }
  void text(std::string_view key, std::string& out) {
    const toml::node* const node = take(key);
    if (!node) return;
    if (const auto value = node->value_exact<std::string>()) out = *value;
    else wrong(*node, key, "accepted is a text in quotes");
  }
  void number(std::string_view key, std::optional<double>& out) {
    const toml::node* const node = take(key);
    if (!node) return;
    if (const auto value = node->value<double>(); value && std::isfinite(*value) && *value >= 0) out = *value;
    else wrong(*node, key, "accepted is a number of at least 0");
  }
  void whole(std::string_view key, int64_t& out) {
    const toml::node* const node = take(key);
    if (!node) return;
    if (const auto value = node->value_exact<int64_t>(); value && *value > 0 && *value <= INT32_MAX) out = *value;
    else wrong(*node, key, "accepted is a whole number above 0");
  }
  template <class T>
  void list(std::string_view key, std::vector<T>& out) {  // one value, or several
    const toml::node* const node = take(key);
    if (!node) return;
    const auto add = [&](const toml::node& one) {
      if (const auto value = one.value_exact<T>()) out.push_back(*value);
      else if (std::is_same_v<T, std::string>) wrong(one, key, "accepted are texts in quotes");
      else wrong(one, key, "accepted are whole numbers");
    };
    if (!node->is_array()) return add(*node);
    for (const toml::node& one : *node->as_array()) add(one);
    if (node->as_array()->empty()) wrong(*node, key, "the list is empty, and accepts no row");
  }
  // wrong_word: why no row has a word; "" if one may have it.
  void words(std::string_view key, std::vector<std::string>& out, std::string (*wrong_word)(const std::string&)) {
    list(key, out);
    const toml::node* const node = table.get(key);
    const auto judge = [&](const toml::node& one) {
      if (const auto value = one.value_exact<std::string>())
        if (const std::string why = wrong_word(*value); !why.empty()) wrong(one, key, why);
    };
    if (node && node->is_array())
      for (const toml::node& one : *node->as_array()) judge(one);
    else if (node) judge(*node);
  }
  void finish() {
    for (const auto& [key, node] : table) {
      const std::string_view word = key.str();
      if (std::find(known.begin(), known.end(), word) != known.end()) continue;
      std::string all;
      for (const std::string& k : known) all += join(all.empty() ? "" : ", ", k);
      wrong(node, word, "is not one of ", all, near_key(word, known));
    }
  }
};

}  // namespace attune
