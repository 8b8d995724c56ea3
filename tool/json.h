// SPDX-License-Identifier: Apache-2.0
// A JSON document for writing; members keep the order in which they were added. nlohmann's library does the work, but
// only json.cpp and the reader of records include it: its header costs 2 seconds of compile time per file.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace attune {

class Json {
 public:
  Json(std::nullptr_t = nullptr);
  Json(std::string);
  Json(std::string_view);
  Json(const char*);
  template <class T>
    requires std::is_arithmetic_v<T>  // excludes pointers, which convert to bool; non-finite numbers become null
  Json(T x) : kind_(kind_of<T>()), whole_(kind_ == Kind::real ? 0 : int64_t(x)), real_(double(x)) {}
  template <class T>
  Json(const std::vector<T>& all) : kind_(Kind::array) {
    for (const T& x : all) items_.push_back(Json(x));
  }
  // {{"name", value}, ...}, where every element is a name with its value, is an object; anything else is an array.
  Json(std::initializer_list<Json>);
  static Json array();
  static Json object();

  // Defined in json.cpp; here, every file would compile them again.
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();

  Json& operator[](std::string_view name);  // a member, added if missing; null becomes an object
  void push_back(Json);                     // appends to an array; null becomes an array
  void update(const Json& object);          // copies the members of `object` into this one

  // One line, or indented by `indent` per level. Bytes that are not UTF-8 become U+FFFD.
  std::string dump(int indent = -1) const;

 private:
  enum class Kind : uint8_t { null, truth, whole, natural, real, text, array, object };
  struct Writer;
  template <class T>
  static constexpr Kind kind_of() {
    if (std::is_same_v<T, bool>) return Kind::truth;
    return std::is_floating_point_v<T> ? Kind::real : std::is_signed_v<T> ? Kind::whole : Kind::natural;
  }
  bool is_member() const;  // a name with its value

  Kind kind_ = Kind::null;
  int64_t whole_ = 0;  // a truth is 0 or 1; a natural has the same bits
  double real_ = 0;
  std::string text_{};
  std::vector<Json> items_{};
  std::vector<std::string> names_{};  // member names of an object, one per item
};

}  // namespace attune
