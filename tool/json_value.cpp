// SPDX-License-Identifier: Apache-2.0
#include "tool/json_value.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace attune {

// Fills a document from the events of nlohmann's parser. Depth is limited: a hostile text could exhaust the stack of
// whoever destroys the document.
struct JsonValue::Builder : nlohmann::json_sax<nlohmann::json> {
  static constexpr size_t kMostDepth = 100;
  JsonValue* root;
  std::vector<JsonValue*> open{};
  std::string name{}, error{};

  explicit Builder(JsonValue* to) : root(to) {}
  JsonValue* place() {
    if (open.empty()) return root;
    JsonValue* const in = open.back();
    if (in->kind_ == Kind::object) in->names_.push_back(std::move(name));
    return &in->items_.emplace_back();
  }
  bool add(Kind kind, double number, std::string text = "") {
    JsonValue* const at = place();
    at->kind_ = kind, at->number_ = number, at->text_ = std::move(text);
    return true;
  }
  bool begin(Kind kind) {
    if (open.size() >= kMostDepth) return error = "it is nested too deeply", false;
    JsonValue* const at = place();
    at->kind_ = kind;
    open.push_back(at);
    return true;
  }
  bool null() override { return add(Kind::null, 0); }
  bool boolean(bool x) override { return add(Kind::truth, x); }
  bool number_integer(number_integer_t x) override { return add(Kind::number, double(x)); }
  bool number_unsigned(number_unsigned_t x) override { return add(Kind::number, double(x)); }
  bool number_float(number_float_t x, const string_t&) override { return add(Kind::number, x); }
  bool string(string_t& x) override { return add(Kind::text, 0, std::move(x)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return begin(Kind::object); }
  bool key(string_t& x) override { return name = std::move(x), true; }
  bool end_object() override { return open.pop_back(), true; }
  bool start_array(size_t) override { return begin(Kind::array); }
  bool end_array() override { return open.pop_back(), true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return error = join("byte ", at, " is unexpected"), false;
  }
};

Status JsonValue::parse(std::string_view text, JsonValue& out) {
  out = {};
  Builder builder(&out);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return Status::good();
  out = {};
  return Status::no("is not JSON: ", builder.error.empty() ? "it ends early" : builder.error);
}

const JsonValue& JsonValue::operator[](std::string_view name) const {
  static const JsonValue kNothing;
  const auto it = std::find(names_.begin(), names_.end(), name);
  return it == names_.end() ? kNothing : items_[size_t(it - names_.begin())];
}

std::string JsonValue::text(std::string_view otherwise) const {
  return kind_ == Kind::text ? text_ : std::string(otherwise);
}

std::optional<double> JsonValue::number() const {
  return kind_ == Kind::number ? std::optional(number_) : std::nullopt;
}

}  // namespace attune
