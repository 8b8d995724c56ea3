// Success, or a sentence that explains why something cannot be done. An empty message means success.
#pragma once
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace attune {

inline void append(std::string& s, std::string_view text) { s += text; }
inline void append(std::string& s, char letter) { s += letter; }
inline void append(std::string& s, std::integral auto number) { s += std::to_string(number); }
inline void append(std::string& s, std::floating_point auto number) {  // shortest text that parses back to the value
  char text[40];
  s.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

// Concatenates text and numbers: join("dim ", 80, " is not 64").
template <class... Part>
std::string join(const Part&... part) {
  std::string s;
  (append(s, part), ...);
  return s;
}

struct [[nodiscard]] Status {
  std::string message{};  // "cpu_forward: dim 320 is over 256"

  bool ok() const { return message.empty(); }
  static Status good() { return {}; }
  template <class... Part>
  static Status no(const Part&... part) { return {join(part...)}; }
};

}  // namespace attune
