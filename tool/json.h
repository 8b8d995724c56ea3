// A JSON document that is written: members stay in the order they were added. nlohmann's library stands behind it and
// is seen by json.cpp and by what reads records alone: it costs every file that includes it 2 seconds.
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
    requires std::is_arithmetic_v<T>  // and no pointer, which would convert to bool; what is not finite becomes null
  Json(T x) : kind_(kind_of<T>()), whole_(kind_ == Kind::real ? 0 : int64_t(x)), real_(double(x)) {}
  template <class T>
  Json(const std::vector<T>& all) : kind_(Kind::array) {
    for (const T& x : all) items_.push_back(Json(x));
  }
  // {{"name", value}, ...}, each a name with its value, is an object; anything else is an array.
  Json(std::initializer_list<Json>);
  static Json array();
  static Json object();

  // Defined in json.cpp: here each file would compile them anew.
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();

  Json& operator[](std::string_view name);  // of an object, or of null, which then is one; added where it is not there
  void push_back(Json);                     // to an array, or to null, which then is one
  void update(const Json& object);          // its members, into this object

  // One line, or with an indentation for each depth. Bytes that are not UTF-8 become U+FFFD.
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
  int64_t whole_ = 0;  // of a truth 0 or 1, of a natural the same bits
  double real_ = 0;
  std::string text_{};
  std::vector<Json> items_{};
  std::vector<std::string> names_{};  // of an object, as many as items
};

}  // namespace attune
