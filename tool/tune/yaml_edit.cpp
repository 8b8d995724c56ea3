// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/yaml_edit.h"

#include <yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <vector>

namespace attune {
namespace {

constexpr size_t kMostBytes = 16 << 20;
constexpr int kMostDepth = 100;

// One value: a scalar, or the begin or end of a mapping or a sequence. Offsets are in bytes.
struct Event {
  enum Kind { scalar, alias, mapping, sequence, end } kind = scalar;
  std::string text{};          // of a scalar
  size_t first = 0, last = 0;  // half-open
  size_t column = 0;
  bool decorated = false;      // it has an anchor or a tag
  bool block = false;          // a mapping or a scalar in block style
  char quote = 0;              // of a scalar in quotes
};

// libyaml counts characters; editing needs bytes.
std::vector<size_t> byte_offsets(std::string_view text) {
  std::vector<size_t> at;
  for (size_t n = 0; n < text.size(); ++n)
    if ((static_cast<unsigned char>(text[n]) & 0xC0) != 0x80) at.push_back(n);
  return at.push_back(text.size()), at;
}

Status read_events(const std::string& text, std::vector<Event>& out) {
  if (text.size() > kMostBytes) return Status::no("YAML: ", text.size(), " bytes, over the limit of ", kMostBytes);
  if (text.find('\0') != text.npos || text.starts_with("\xEF\xBB\xBF"))
    return Status::no("YAML: accepted is UTF-8 without a byte order mark");
  yaml_parser_t parser;
  if (!yaml_parser_initialize(&parser)) return Status::failure(Code::out_of_memory, "YAML: not enough memory");
  const std::unique_ptr<yaml_parser_t, void (*)(yaml_parser_t*)> owner(&parser, yaml_parser_delete);
  yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&parser, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  const std::vector<size_t> bytes = byte_offsets(text);
  const auto byte_at = [&](const yaml_mark_t& m) { return bytes[std::min(m.index, bytes.size() - 1)]; };
  int documents = 0, depth = 0;
  for (bool more = true; more;) {
    yaml_event_t e;
    if (!yaml_parser_parse(&parser, &e))
      return Status::no("YAML: line ", parser.problem_mark.line + 1, ": ", parser.problem ? parser.problem : "wrong");
    const std::unique_ptr<yaml_event_t, void (*)(yaml_event_t*)> event(&e, yaml_event_delete);
    Event one{.first = byte_at(e.start_mark), .last = byte_at(e.end_mark), .column = e.start_mark.column};
    switch (e.type) {
      case YAML_SCALAR_EVENT:
        one.text.assign(reinterpret_cast<const char*>(e.data.scalar.value), e.data.scalar.length);
        one.decorated = e.data.scalar.anchor || e.data.scalar.tag;
        one.quote = e.data.scalar.style == YAML_SINGLE_QUOTED_SCALAR_STYLE   ? '\''
                    : e.data.scalar.style == YAML_DOUBLE_QUOTED_SCALAR_STYLE ? '"'
                                                                             : char(0);
        one.block = e.data.scalar.style == YAML_LITERAL_SCALAR_STYLE || e.data.scalar.style == YAML_FOLDED_SCALAR_STYLE;
        break;
      case YAML_ALIAS_EVENT: one.kind = Event::alias; break;
      case YAML_MAPPING_START_EVENT:
        one.kind = Event::mapping, one.block = e.data.mapping_start.style == YAML_BLOCK_MAPPING_STYLE;
        break;
      case YAML_SEQUENCE_START_EVENT: one.kind = Event::sequence; break;
      case YAML_MAPPING_END_EVENT: case YAML_SEQUENCE_END_EVENT: one.kind = Event::end; break;
      case YAML_DOCUMENT_START_EVENT: ++documents; continue;
      case YAML_STREAM_END_EVENT: more = false; continue;
      default: continue;
    }
    depth += one.kind == Event::mapping || one.kind == Event::sequence ? 1 : one.kind == Event::end ? -1 : 0;
    if (depth > kMostDepth)  // the parser's time grows with the square of it
      return Status::no("YAML: line ", e.start_mark.line + 1, ": more than ", kMostDepth, " levels");
    out.push_back(std::move(one));
  }
  return documents > 1 ? Status::no("YAML: ", documents, " documents; accepted is one") : Status::good();
}

// A key of a mapping, with its path, and where key and value stand in the list of events.
struct Entry { std::string path; size_t key, value, after; };

// Index behind the value that begins at `at`.
size_t behind(const std::vector<Event>& e, size_t at) {
  int depth = 0;
  do {
    if (e[at].kind == Event::mapping || e[at].kind == Event::sequence) ++depth;
    if (e[at].kind == Event::end) --depth;
    ++at;
  } while (depth > 0 && at < e.size());
  return at;
}

void collect(const std::vector<Event>& e, size_t mapping, const std::string& prefix, std::vector<Entry>& out) {
  for (size_t n = mapping + 1; n < e.size() && e[n].kind != Event::end;) {
    const size_t value = behind(e, n);  // a key may be a mapping too
    if (value >= e.size()) return;
    const size_t after = behind(e, value);
    if (e[n].kind == Event::scalar) {
      const std::string path = prefix + (prefix.empty() ? "" : ".") + e[n].text;
      out.push_back({path, n, value, after});
      if (e[value].kind == Event::mapping) collect(e, value, path, out);
    }
    n = after;
  }
}

std::vector<Entry> entries(const std::vector<Event>& e) {
  std::vector<Entry> all;
  if (!e.empty() && e[0].kind == Event::mapping) collect(e, 0, "", all);
  return all;
}

// Puts a new line into a mapping of events [first, last), behind its last value.
Status add(std::string& text, const std::vector<Event>& e, size_t mapping, std::string_view line) {
  if (!e[mapping].block || mapping + 1 >= e.size() || e[mapping + 1].kind == Event::end)
    return Status::no("its parent is not a mapping of lines ('name: value'); add the key by hand");
  const Event& first = e[mapping + 1];
  const size_t last = behind(e, mapping) - 2;  // before the end of the mapping; an inner end has no text of its own
  size_t n = last;
  while (n > mapping && e[n].kind == Event::end && e[n].last == e[n].first) --n;
  size_t at = e[n].last;
  const bool crlf = text.find("\r\n") != text.npos;
  const std::string end = crlf ? "\r\n" : "\n";
  // A value in block style ends at the beginning of a line, all others within one.
  if (!e[n].block || (at > 0 && text[at - 1] != '\n')) {
    const size_t stop = text.find('\n', at);
    if (stop == text.npos) text += end, at = text.size();
    else at = stop + 1;
  }
  text.insert(at, join(std::string(first.column, ' '), line, end));
  return Status::good();
}

// YAML 1.1 and 1.2: 512, -1, +3, 8_192, .5, 1e-3. Not a date, an address or a version of three parts.
bool is_number(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, value);
  return error == std::errc() && at == end && std::isfinite(value);
}

// The first key of a file, with its parents.
std::string nested(std::string_view path, std::string_view value) {
  std::string lines;
  for (size_t depth = 0;; ++depth) {
    const size_t dot = path.find('.');
    lines += join(std::string(2 * depth, ' '), path.substr(0, dot), ":");
    if (dot == path.npos) return lines += join(" ", value, "\n");
    lines += "\n";
    path.remove_prefix(dot + 1);
  }
}

Status edit(std::string& text, std::string_view path, std::string_view value) {
  std::vector<Event> e;
  if (Status s = read_events(text, e); !s.ok()) return s;
  const std::vector<Entry> all = entries(e);
  const auto count = std::count_if(all.begin(), all.end(), [&](const Entry& x) { return x.path == path; });
  if (count > 1) return Status::no("it stands ", count, " times in the file");
  const auto found = std::find_if(all.begin(), all.end(), [&](const Entry& x) { return x.path == path; });
  if (found != all.end()) {
    const Event& v = e[found->value];
    if (v.kind != Event::scalar || v.decorated || v.block)
      return Status::no("its value is not a plain one: accepted is a single value without an anchor or a tag");
    if (is_number(value) && !is_number(v.text) && !v.text.empty() && v.text != "~" && v.text != "null")
      return Status::no("its value '", v.text, "' is not a number");
    const bool is_empty = v.first == v.last;
    const std::string quote(v.quote && is_number(value) ? 1 : 0, v.quote);  // a text stays a text
    text.replace(v.first, v.last - v.first, join(is_empty ? " " : "", quote, value, quote));
    return Status::good();
  }
  const size_t dot = path.rfind('.');
  const std::string_view parent = dot == path.npos ? "" : path.substr(0, dot);
  const std::string line = join(path.substr(dot == path.npos ? 0 : dot + 1), ": ", value);
  if (e.empty()) return text += nested(path, value), Status::good();
  if (parent.empty()) {
    if (e[0].kind != Event::mapping) return Status::no("the file is not a mapping");
    return add(text, e, 0, line);
  }
  const auto above = std::find_if(all.begin(), all.end(), [&](const Entry& x) { return x.path == parent; });
  if (above == all.end()) return Status::no("the file has no '", parent, "' to add it to");
  if (e[above->value].kind != Event::mapping) return Status::no("'", parent, "' is not a mapping");
  return add(text, e, above->value, line);
}

bool same(const Event& a, const Event& b) { return a.kind == b.kind && a.text == b.text && a.decorated == b.decorated; }

// The new text must parse to the old one but for this value.
bool differs_only_there(const std::string& before, const std::string& after, std::string_view path,
                        std::string_view value) {
  std::vector<Event> a, b;
  if (!read_events(before, a).ok() || !read_events(after, b).ok()) return false;
  const std::vector<Entry> all = entries(b);
  const auto now = std::find_if(all.begin(), all.end(), [&](const Entry& x) { return x.path == path; });
  if (now == all.end() || b[now->value].kind != Event::scalar || b[now->value].text != value) return false;
  const auto at = b.begin() + std::ptrdiff_t(now->key);
  if (a.size() == b.size()) b[now->value].text = a[now->value].text;
  else b.erase(at, at + 2);
  if (a.empty()) return true;  // the file was empty
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
}

}  // namespace

Status set_yaml(std::string& text, std::string_view path, std::string_view value) {
  std::string now = text;
  if (Status s = edit(now, path, value); !s.ok()) return s.after(path, ": ");
  if (!differs_only_there(text, now, path, value))
    return Status::no(path, ": the file cannot be edited without changing more than this value; edit it by hand");
  text = std::move(now);
  return Status::good();
}

Status yaml_path_of(const std::string& text, std::string_view key, std::string& path) {
  path.clear();
  std::vector<Event> e;
  if (Status s = read_events(text, e); !s.ok()) return s;
  for (const Entry& x : entries(e)) {
    if (e[x.key].text != key) continue;
    if (!path.empty()) return Status::no(key, ": stands at ", path, " and at ", x.path, "; name one of them");
    path = x.path;
  }
  return Status::good();
}

bool yaml_has(const std::string& text, std::string_view path) {
  std::vector<Event> e;
  if (!read_events(text, e).ok()) return false;
  const std::vector<Entry> all = entries(e);
  return std::any_of(all.begin(), all.end(), [&](const Entry& x) { return x.path == path; });
}

std::string yaml_diff(const std::string& before, const std::string& after) {
  const auto lines = [](std::string_view text) {
    std::vector<std::string_view> all;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      all.push_back(text.substr(0, end - (end && text[end - 1] == '\r')));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return all;
  };
  const std::vector<std::string_view> a = lines(before), b = lines(after);
  size_t head = 0, tail = 0;
  while (head < std::min(a.size(), b.size()) && a[head] == b[head]) ++head;
  while (tail < std::min(a.size(), b.size()) - head && a[a.size() - 1 - tail] == b[b.size() - 1 - tail]) ++tail;
  // Values change line by line; between the first and the last change, equal lines are left out.
  std::string diff;
  size_t m = head, n = head;
  const size_t end_a = a.size() - tail, end_b = b.size() - tail;
  while (m < end_a || n < end_b) {
    if (m < end_a && n < end_b && a[m] == b[n]) { ++m, ++n; continue; }
    const bool is_new = n < end_b && (m == end_a || (end_b - n > end_a - m && std::find(b.begin() + std::ptrdiff_t(n),
                                      b.begin() + std::ptrdiff_t(end_b), a[m]) != b.begin() + std::ptrdiff_t(end_b)));
    if (!is_new) diff += join("- ", a[m++], "\n");
    if (n < end_b && (is_new || m == end_a || a[m] != b[n] || end_a - m < end_b - n)) diff += join("+ ", b[n++], "\n");
  }
  return diff;
}

}  // namespace attune
