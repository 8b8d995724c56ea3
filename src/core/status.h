// SPDX-License-Identifier: Apache-2.0
// Success, or a failure: its kind, and a sentence that says what was given and what is accepted.
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

// What kind of failure it is, for code that must tell them apart. The sentence is for people: no code reads it.
enum class Code : unsigned char {
  ok,
  invalid,        // the caller's input is wrong: bad arguments, a bad file, an unknown word
  unsupported,    // the input is right, but this backend, build or machine cannot do it
  out_of_memory,  // of the host or of a device
  device,         // the driver, the GPU or another process failed
  internal,       // a bug of this library
};

struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message{};  // "cpu_forward: dim 320 is over 256"

  bool ok() const { return code == Code::ok; }
  static Status good() { return {}; }
  template <class... Part>
  static Status failure(Code code, const Part&... part) { return {code, join(part...)}; }
  template <class... Part>
  static Status no(const Part&... part) { return failure(Code::invalid, part...); }
  template <class... Part>
  static Status unsupported(const Part&... part) { return failure(Code::unsupported, part...); }
  // A failure of the same kind, whose sentence begins with `part`: s.after(who, ": ").
  template <class... Part>
  Status after(const Part&... part) const { return ok() ? good() : failure(code, part..., message); }
};

}  // namespace attune
