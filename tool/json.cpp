// SPDX-License-Identifier: Apache-2.0
#include "tool/json.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>

namespace attune {

Json::Json(std::nullptr_t) {}
Json::Json(std::string text) : kind_(Kind::text), text_(std::move(text)) {}
Json::Json(std::string_view text) : kind_(Kind::text), text_(text) {}
Json::Json(const char* text) : kind_(Kind::text), text_(text) {}
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

Json::Json(std::initializer_list<Json> all) : kind_(Kind::array) {
  if (!std::all_of(all.begin(), all.end(), [](const Json& x) { return x.is_member(); })) {
    items_ = all;
    return;
  }
  kind_ = Kind::object;
  for (const Json& member : all) (*this)[member.items_[0].text_] = member.items_[1];
}

Json Json::array() {
  Json j;
  j.kind_ = Kind::array;
  return j;
}

Json Json::object() {
  Json j;
  j.kind_ = Kind::object;
  return j;
}

bool Json::is_member() const {
  return kind_ == Kind::array && items_.size() == 2 && items_[0].kind_ == Kind::text;
}

Json& Json::operator[](std::string_view name) {
  if (kind_ == Kind::null) kind_ = Kind::object;
  assert(kind_ == Kind::object);
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at != names_.end()) return items_[size_t(at - names_.begin())];
  names_.emplace_back(name);
  return items_.emplace_back();
}

void Json::push_back(Json item) {
  if (kind_ == Kind::null) kind_ = Kind::array;
  assert(kind_ == Kind::array);
  items_.push_back(std::move(item));
}

void Json::update(const Json& object) {
  for (size_t n = 0; n < object.names_.size(); ++n) (*this)[object.names_[n]] = object.items_[n];
}

struct Json::Writer {
  static nlohmann::ordered_json of(const Json& j) {
    switch (j.kind_) {
      case Kind::null: break;
      case Kind::truth: return j.whole_ != 0;
      case Kind::whole: return j.whole_;
      case Kind::natural: return uint64_t(j.whole_);
      case Kind::real: return j.real_;
      case Kind::text: return j.text_;
      case Kind::array: {
        nlohmann::ordered_json all = nlohmann::ordered_json::array();
        for (const Json& x : j.items_) all.push_back(of(x));
        return all;
      }
      case Kind::object: {
        nlohmann::ordered_json all = nlohmann::ordered_json::object();
        for (size_t n = 0; n < j.items_.size(); ++n) all[j.names_[n]] = of(j.items_[n]);
        return all;
      }
    }
    return nullptr;
  }
};

std::string Json::dump(int indent) const {
  return Writer::of(*this).dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace attune
