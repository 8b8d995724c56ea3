// SPDX-License-Identifier: Apache-2.0
#include "tool/text.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/problem_line.h"

namespace attune {
namespace {

std::string scaled(double value, double step, const char* const* units, int count) {
  int n = 0;
  // 0.9995: a value that rounds up to a full step at three digits takes the larger unit.
  while (n + 1 < count && std::fabs(value) >= 0.9995 * step) value /= step, ++n;
  return digits_text(value) + " " + units[n];
}

}  // namespace

std::string digits_text(double value, int significant) {
  if (!std::isfinite(value)) return std::isnan(value) ? "?" : value < 0 ? "-inf" : "inf";
  if (value == 0) return "0";
  int whole = int(std::floor(std::log10(std::fabs(value)))) + 1;  // digits before the point
  if (std::fabs(value) + 0.5 * std::pow(10.0, whole - significant) >= std::pow(10.0, whole)) ++whole;
  if (whole > 15) return fmt::format("{:.{}e}", value, significant - 1);
  return fmt::format("{:.{}f}", value, std::min(12, std::max(0, significant - whole)));
}

std::string in_one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto code = (unsigned char)(c);
    if (code < 0x20 || code == 0x7F) out += fmt::format("\\u{:04x}", int(code));
    else out += c;
  }
  return out;
}

std::string without_zeros(std::string digits) {
  if (digits.find('.') == digits.npos) return digits;
  while (digits.ends_with('0')) digits.pop_back();
  if (digits.ends_with('.')) digits.pop_back();
  return digits;
}

std::string bytes_text(double bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(bytes, 1024, units, 6);
}

std::string count_text(double count, std::string_view unit) {
  static const char* const units[] = {"", "K", "M", "G", "T", "P"};
  std::string s = scaled(count, 1000, units, 6);
  // A prefix is joined to a unit symbol (GFLOP), but not to a word (G pairs).
  if (!s.ends_with(' ') && unit.front() >= 'a' && unit.front() <= 'z') s += ' ';
  return s.append(unit);
}

std::string seconds_text(double seconds) {
  static const char* const units[] = {"ns", "us", "ms", "s"};
  return scaled(seconds * 1e9, 1000, units, 4);
}

std::string tick_text(double seconds) {
  const std::string s = seconds_text(seconds);
  const size_t space = s.find(' ');
  return without_zeros(s.substr(0, space)) + s.substr(space);
}

std::string kernel_text(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> whole(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                     std::free);
  if (status != 0 || !whole) return mangled;
  std::string_view text = whole.get();
  if (text.starts_with("void ")) text.remove_prefix(5);
  constexpr std::string_view kUnnamed = "(anonymous namespace)";
  int depth = 0;
  for (size_t n = 0; n < text.size(); ++n) {
    if (text.substr(n).starts_with(kUnnamed)) { n += kUnnamed.size() - 1; continue; }
    if (text[n] == '<') ++depth;
    if (text[n] == '>') --depth;
    if (text[n] == '(' && depth == 0) return std::string(text.substr(0, n));
  }
  return std::string(text);
}

std::string counted(int64_t count, std::string_view what) {
  return join(count, " ", what, count == 1 ? "" : "s");
}

std::string factor_text(double factor) { return digits_text(factor) + "x"; }

std::string not_one_of(std::string_view word, std::string_view names) {
  std::vector<std::string_view> all;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(", ", at), names.size());
    all.push_back(names.substr(at, end - at)), at = end + 2;
  }
  const std::string_view best = closest_word(word, all);
  return join("'", word, "' is not one of ", names, best.empty() ? "" : join("; did you mean '", best, "'?"));
}

}  // namespace attune
