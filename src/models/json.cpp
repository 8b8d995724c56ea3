// SPDX-License-Identifier: Apache-2.0
#include "models/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace attune::models {
namespace {

constexpr int kDeepest = 64;  // nested lists and objects

// After the first error every step is a no-op.
struct Reader {
  std::string_view text;
  size_t at = 0;
  int depth = 0;
  std::string wrong{};

  bool fine() const { return wrong.empty(); }
  void miss(std::string_view what) {
    if (fine()) wrong = join("expected ", what, " at byte ", at);
  }
  void space() {
    while (at < text.size() && std::string_view(" \n\t\r").find(text[at]) != std::string_view::npos) ++at;
  }
  bool take(char letter) {
    space();
    if (!fine() || at >= text.size() || text[at] != letter) return false;
    return ++at, true;
  }
  bool take_word(std::string_view word) {
    if (!text.substr(at).starts_with(word)) return false;
    return at += word.size(), true;
  }
  uint32_t hex4() {
    uint32_t code = 0;
    const char* first = text.data() + at;
    const auto [end, error] = std::from_chars(first, text.data() + std::min(at + 4, text.size()), code, 16);
    if (error != std::errc{} || end != first + 4) miss("four hexadecimal digits");
    else at += 4;
    return code;
  }
  void escape(std::string& to) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const char letter = at < text.size() ? text[at++] : '\0';
    const size_t n = letter ? kEscapes.find(letter) : kEscapes.npos;
    if (n != kEscapes.npos) return void(to += kMeant[n]);
    if (letter != 'u') return miss("an escape");
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00) {  // half of a surrogate pair
      const bool second = take_word("\\u");
      const uint32_t low = second ? hex4() : 0;
      if (low < 0xDC00 || low > 0xDFFF) return miss("the second half of a character");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (!code || (code >= 0xDC00 && code < 0xE000)) return miss("a character");
    if (code < 0x80) return void(to += char(code));
    if (code >= 0x10000) to += char(0xF0 | code >> 18), to += char(0x80 | (code >> 12 & 63));
    else if (code >= 0x800) to += char(0xE0 | code >> 12);
    if (code >= 0x800) to += char(0x80 | (code >> 6 & 63));
    else to += char(0xC0 | code >> 6);
    to += char(0x80 | (code & 63));
  }
  std::string string() {
    std::string s;
    if (!take('"')) miss("a string");
    while (fine()) {
      if (at >= text.size()) miss("the end of a string");
      else if (const char c = text[at++]; c == '"') break;
      else if (uint8_t(c) < 0x20) --at, miss("no control character in a string");
      else if (c == '\\') escape(s);
      else s += c;
    }
    return s;
  }
  Json number() {
    Json j{.kind = JsonKind::number};
    const char *first = text.data() + at, *last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, j.number);
    const size_t digit = at + (at < text.size() && text[at] == '-');
    const bool starts = digit < text.size() && text[digit] >= '0' && text[digit] <= '9';
    if (!starts || error != std::errc{}) miss("a value");
    else at += size_t(end - first);
    return j;
  }
  Json value() {
    space();
    if (++depth > kDeepest) miss("at most 64 levels");
    Json j;
    if (!fine()) return j;
    const size_t begin = at;
    if (take('{')) {
      j.kind = JsonKind::object;
      if (!take('}')) members(j);
    } else if (take('[')) {
      j.kind = JsonKind::list;
      if (!take(']')) {
        do j.items.push_back(value());
        while (take(','));
        if (!take(']')) miss("]");
      }
    } else if (at < text.size() && text[at] == '"') {
      j.kind = JsonKind::text, j.text = string();
    } else if (take_word("true")) {
      j.kind = JsonKind::boolean, j.truth = true;
    } else if (take_word("false")) {
      j.kind = JsonKind::boolean;
    } else if (!take_word("null")) {
      j = number();
    }
    --depth, j.at = begin, j.end = at;
    return j;
  }
  void members(Json& j) {
    std::set<std::string> names;
    do {
      std::string name = string();
      if (fine() && !names.insert(name).second) wrong = join("'", name, "' occurs twice");
      if (!take(':')) miss(":");
      if (!fine()) return;
      j.members.emplace_back(std::move(name), value());
    } while (take(','));
    if (!take('}')) miss("}");
  }
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  for (const auto& [member, value] : members)
    if (member == name) return value.kind == JsonKind::null ? nullptr : &value;
  return nullptr;
}

Status read_json(std::string_view text, Json& out) {
  Reader r{text};
  out = r.value();
  r.space();
  if (r.fine() && r.at != text.size()) r.miss("the end");
  return r.fine() ? Status::good() : Status::no("is not JSON: ", r.wrong);
}

const Json* Fields::get(std::string_view name, JsonKind kind, std::string_view accepted) {
  const Json* const found = object_.find(name);
  if (found && found->kind != kind) refuse(name, " is not ", accepted);
  return found && found->kind == kind ? found : nullptr;
}

int Fields::integer(std::string_view name, int least, int64_t otherwise) {
  const Json* const found = get(name, JsonKind::number, "a number");
  if (!found && otherwise < 0) refuse(name, " is missing");
  const double x = found ? found->number : double(otherwise);
  if (failed.ok() && (x != std::floor(x) || x < least || x > 1 << 30))
    refuse(name, " = ", x, " is not an integer of ", least, " ... 2^30");
  return failed.ok() ? int(x) : least;
}

double Fields::number(std::string_view name, double otherwise) {
  const Json* const found = get(name, JsonKind::number, "a number");
  return found ? found->number : otherwise;
}

bool Fields::truth(std::string_view name, bool otherwise) {
  const Json* const found = get(name, JsonKind::boolean, "true or false");
  return found ? found->truth : otherwise;
}

std::string Fields::text(std::string_view name, std::string_view otherwise) {
  const Json* const found = get(name, JsonKind::text, "a text");
  return found ? found->text : std::string(otherwise);
}

const Json* Fields::list(std::string_view name) { return get(name, JsonKind::list, "a list"); }

bool Fields::is_null(std::string_view name) const {
  for (const auto& [member, value] : object_.members)
    if (member == name) return value.kind == JsonKind::null;
  return false;
}

Fields Fields::object(std::string_view name) {
  static const Json kNone{.kind = JsonKind::object};
  const Json* const found = get(name, JsonKind::object, "an object");
  return Fields(found ? *found : kNone, join(who_, ": ", name));
}

}  // namespace attune::models
