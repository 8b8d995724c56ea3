// SPDX-License-Identifier: Apache-2.0
// The words of a record that code decides by. Each is an enum, whose last value stands for a word that this version
// does not have: a newer or an edited file keeps its word when it is printed or written again.
#pragma once
#include <string>
#include <string_view>

namespace attune {

enum class RecordStatus {
  ok,
  unsupported,
  oom,          // does not fit this machine
  failed,
  interrupted,
  refused,      // faster than is possible
  other
};
// `empty`: no query that was looked at sees a key, so nothing was compared.
enum class CheckVerdict { none, pass, pass_at_floor, fail, unchecked, empty, other };
// Why a row was not even tried, although no backend refused it.
enum class LeftOut { no, not_built, not_tried, other };

constexpr std::string_view name(RecordStatus s) {
  constexpr std::string_view kWords[] = {"ok", "unsupported", "oom", "failed", "interrupted", "refused", ""};
  return kWords[int(s)];
}
constexpr std::string_view name(CheckVerdict v) {
  constexpr std::string_view kWords[] = {"", "PASS", "PASS-AT-FLOOR", "FAIL", "UNCHECKED", "EMPTY", ""};
  return kWords[int(v)];
}
constexpr std::string_view name(LeftOut l) {
  constexpr std::string_view kWords[] = {"", "not built", "not tried", ""};
  return kWords[int(l)];
}

template <class E>
class Word {
 public:
  Word(E value = E{}) : value_(value) {}
  explicit Word(std::string_view text) : value_(E{}) {
    while (value_ != E::other && name(value_) != text) value_ = E(int(value_) + 1);
    if (value_ == E::other) text_ = text;
  }
  std::string text() const { return value_ == E::other ? text_ : std::string(name(value_)); }
  friend bool operator==(const Word& a, E b) { return a.value_ == b; }

 private:
  E value_;
  std::string text_{};  // of `other`
};

inline bool passed(const Word<CheckVerdict>& v) { return v == CheckVerdict::pass || v == CheckVerdict::pass_at_floor; }
inline bool compared_nothing(const Word<CheckVerdict>& v) {
  return v == CheckVerdict::none || v == CheckVerdict::unchecked || v == CheckVerdict::empty;
}

}  // namespace attune
