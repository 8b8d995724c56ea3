// SPDX-License-Identifier: Apache-2.0
// JSON as read from the files beside a model's weights: config.json and the index of its shards. The library has no
// dependencies, so this reader is its own. It is strict, and every malformed text yields one sentence.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace attune::models {

enum class JsonKind : int32_t { null, boolean, number, text, list, object };

struct Json {
  JsonKind kind = JsonKind::null;
  bool truth = false;
  double number = 0;
  std::string text{};
  std::vector<Json> items{};
  std::vector<std::pair<std::string, Json>> members{};  // in the order of the file; names are unique
  size_t at = 0, end = 0;                               // bytes of the text

  // A member of an object; null if there is none, or if its value is null.
  const Json* find(std::string_view name) const;
};

Status read_json(std::string_view text, Json& out);

// The members of an object by name and type, with the first error kept: each `who` is the file. A member that is absent
// or null has the given default.
class Fields {
 public:
  Fields(const Json& object, std::string who) : object_(object), who_(std::move(who)) {}
  bool has(std::string_view name) const { return object_.find(name); }
  bool is_null(std::string_view name) const;  // there, and null
  const std::vector<std::pair<std::string, Json>>& members() const { return object_.members; }
  int integer(std::string_view name, int least, int64_t otherwise);  // -1 as default: required
  double number(std::string_view name, double otherwise);
  bool truth(std::string_view name, bool otherwise);
  std::string text(std::string_view name, std::string_view otherwise);
  const Json* list(std::string_view name);  // null if there is none
  Fields object(std::string_view name);     // empty if there is none
  // Keeps the first refusal.
  template <class... Part>
  void refuse(const Part&... why) {
    if (failed.ok()) failed = Status::no(who_, ": ", why...);
  }
  Status failed{};

 private:
  const Json* get(std::string_view name, JsonKind, std::string_view accepted);
  const Json& object_;
  std::string who_;
};

}  // namespace attune::models
