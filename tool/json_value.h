// SPDX-License-Identifier: Apache-2.0
// A JSON document for reading, whoever wrote it: what is missing or of another kind reads as nothing.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace attune {

class JsonValue {
 public:
  static Status parse(std::string_view text, JsonValue& out);  // "is not JSON: ..."

  const JsonValue& operator[](std::string_view name) const;  // null if this is not an object or has no such member
  const std::vector<JsonValue>& items() const { return items_; }  // of an array, or the members of an object
  const std::vector<std::string>& names() const { return names_; }  // of the members of an object
  bool is_null() const { return kind_ == Kind::null; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_text() const { return kind_ == Kind::text; }
  std::string text(std::string_view otherwise = "") const;  // of a text
  std::optional<double> number() const;                     // of a number
  bool truth() const { return kind_ == Kind::truth && number_ != 0; }

 private:
  enum class Kind : unsigned char { null, truth, number, text, array, object };
  struct Builder;
  Kind kind_ = Kind::null;
  double number_ = 0;
  std::string text_{};
  std::vector<JsonValue> items_{};
  std::vector<std::string> names_{};
};

}  // namespace attune
