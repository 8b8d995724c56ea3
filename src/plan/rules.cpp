// SPDX-License-Identifier: Apache-2.0
// A tuned file is text with one fact per line and tabs between fields, so a new measurement is a readable diff:
//   attune-tuned 1
//   device    NVIDIA H200
//   measured  2026-11-14 commit abc1234 attune bench --lines rows.txt --backend all
//   rule      forward  bf16  d128  causal  heads 1-16  len 512  sm90_forward
// The version comes first; device and measured appear once each, before the rules. Empty lines and lines that start
// with # are ignored. "d192/128" is dim_qk/dim_v. "heads 17-*" has no upper end. "few 512" is "len 512" with at most
// 16 queries. "len 512 work 16384" also requires batch x heads x keys of at least 16384.
// Any mistake refuses the whole file, because half a measurement is useless.
#include "plan/rules.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "core/dtypes.h"
#include "plan/plan.h"

namespace attune {
namespace {

using Text = std::string_view;
constexpr Text kVersion = "attune-tuned 1";
constexpr Text kMask[] = {"full", "causal", "window"};
constexpr int kFields = 8;
constexpr Text kShape = "rule, pass, dtype, d#, mask, heads #-#, len # or few #, backend";
constexpr int32_t kMaxDim = 1 << 16;  // as in valid() for problems

// Quotes user text for a message: limited in length, without control characters.
std::string quoted(Text given) {
  constexpr size_t kMost = 60;
  std::string s = "'";
  for (const char c : given.substr(0, kMost)) s += (unsigned char)(c) < ' ' || c == 127 ? '?' : c;
  return s + (given.size() > kMost ? "...'" : "'");
}

bool read_number(Text text, int64_t most, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && out >= 1 && out <= most;
}

Text cut(Text& rest, char at) {
  const size_t n = rest.find(at);
  const Text head = rest.substr(0, n);
  rest = n == Text::npos ? Text{} : rest.substr(n + 1);
  return head;
}

bool take(Text& rest, Text word) {
  if (!rest.starts_with(word)) return false;
  rest.remove_prefix(word.size());
  return true;
}

Status read_dims(Text text, Rule& r) {
  Text rest = text;
  int64_t qk = 0, v = 0;
  const bool two = text.find('/') != Text::npos;
  const bool good = take(rest, "d") && read_number(cut(rest, '/'), kMaxDim, qk) &&
                    (!two || read_number(rest, kMaxDim, v));
  if (!good) return Status::no("head dim ", quoted(text), " is not d# or d#/#, each in 1 ... ", kMaxDim);
  r.dim_qk = int32_t(qk), r.dim_v = int32_t(two ? v : qk);
  return Status::good();
}

Status read_heads(Text text, Rule& r) {
  Text rest = text;
  const bool good = take(rest, "heads ") && read_number(cut(rest, '-'), INT64_MAX, r.min_heads) &&
                    (rest == "*" || read_number(rest, INT64_MAX, r.max_heads));
  if (!good) return Status::no(quoted(text), " is not 'heads #-#' or 'heads #-*', each in 1 ... 2^63 - 1");
  if (r.min_heads > r.max_heads) return Status::no(quoted(text), " is empty: the second number is below the first");
  return Status::good();
}

Status read_rule(Text line, Rule& r) {
  const auto fields = std::count(line.begin(), line.end(), '\t') + 1;
  if (fields != kFields)
    return Status::no(fields, " fields given; a rule has ", kFields, ", separated by one tab: ", kShape);
  Text field[kFields], rest = line;
  for (Text& f : field) f = cut(rest, '\t');
  if (field[1] != name(Pass::forward) && field[1] != name(Pass::backward))
    return Status::no("pass ", quoted(field[1]), " is not one of forward, backward");
  r.pass = field[1] == name(Pass::forward) ? Pass::forward : Pass::backward;
  if (!parse(field[2], r.dtype).ok() || !is_floating(r.dtype))
    return Status::no("dtype ", quoted(field[2]), " is not one of f64, f32, f16, bf16, e4m3");
  if (Status s = read_dims(field[3], r); !s.ok()) return s;
  const auto mask = std::find(std::begin(kMask), std::end(kMask), field[4]);
  if (mask == std::end(kMask)) return Status::no("mask ", quoted(field[4]), " is not one of full, causal, window");
  r.mask = MaskKind(mask - std::begin(kMask));
  if (Status s = read_heads(field[5], r); !s.ok()) return s;
  int64_t len = 0;
  Text text = field[6];
  const size_t work = std::min(text.find(" work "), text.size());
  Text length = text.substr(0, work);
  text.remove_prefix(work);
  r.decode = take(length, "few ");
  if ((!r.decode && !take(length, "len ")) || !read_number(length, INT32_MAX, len))
    return Status::no(quoted(field[6]), " is not 'len #' or 'few #' with a number in 1 ... 2^31 - 1");
  if (take(text, " work ") && !read_number(text, INT64_MAX, r.min_work))
    return Status::no(quoted(field[6]), " has no number in 1 ... 2^63 - 1 after 'work'");
  r.min_len = int32_t(len);
  const Backend* backend = find_backend(field[7]);
  if (!backend) return Status::no("backend ", quoted(field[7]), " is not one of ", backend_names());
  if (backend->only_by_name) return Status::no("backend ", quoted(field[7]), " is for checking and is never chosen");
  r.backend = field[7];
  return Status::good();
}

// Everything but the backend. Two rules must not have the same condition.
std::string condition(const Rule& r) {
  std::string s = join("rule\t", name(r.pass), "\t", name(r.dtype), "\td", r.dim_qk);
  if (r.dim_v != r.dim_qk) s += join("/", r.dim_v);
  s += join("\t", kMask[int(r.mask)], "\theads ", r.min_heads, "-");
  s += r.max_heads == INT64_MAX ? "*" : join(r.max_heads);
  s += join(r.decode ? "\tfew " : "\tlen ", r.min_len);
  return s + (r.min_work ? join(" work ", r.min_work) : "") + "\t";
}

// Free text as one line of the file.
std::string line_of(Text word, Text text) {
  std::string s = join(word, "\t", text);
  for (char& c : s)
    if (((unsigned char)(c) < ' ' && &c != &s[word.size()]) || c == 127) c = ' ';
  return s + "\n";
}

// Reads a file line by line and records the lines of facts that may occur only once.
struct Reader {
  Tuned tuned{};
  int device_at = 0, measured_at = 0;  // line number; 0: not seen
  std::unordered_map<std::string, int> conditions{};

  Status fact(Text word, Text text, int line, int& at, std::string& to) {
    if (at) return Status::no("a second ", word, " line; the first is line ", at);
    if (text.empty() || text.find('\t') != Text::npos)
      return Status::no(word, " is followed by ", quoted(text), "; it takes one tab and a text without tabs");
    at = line, to = text;
    return Status::good();
  }
  Status read(Text text, int line) {
    for (size_t n = 0; n < text.size(); ++n)
      if (const auto c = (unsigned char)(text[n]); (c < ' ' && c != '\t') || c == 127)
        return Status::no("byte ", int(c), " at column ", n + 1, "; a tuned file is text");
    if (line == 1) {
      if (text != kVersion) return Status::no("the first line is ", quoted(text), ", not '", kVersion, "'");
      return Status::good();
    }
    if (text.empty() || text[0] == '#') return Status::good();
    Text rest = text;
    const Text word = cut(rest, '\t');
    if (word == "device") return fact(word, rest, line, device_at, tuned.device);
    if (word == "measured") return fact(word, rest, line, measured_at, tuned.measured);
    if (word != "rule")
      return Status::no("the line begins with ", quoted(word), ", not with device, measured, rule or #");
    if (!device_at || !measured_at)
      return Status::no("a rule before the ", device_at ? "measured" : "device",
                        " line; device and measured come first");
    Rule r;
    if (Status s = read_rule(text, r); !s.ok()) return s;
    const auto [first, is_new] = conditions.emplace(condition(r), line);
    if (!is_new) return Status::no("has the same condition as line ", first->second, "; conditions must differ");
    tuned.rules.push_back(std::move(r));
    return Status::good();
  }
};

}  // namespace

Status read_tuned(std::string_view text, std::string_view file, Tuned& out) {
  Reader reader;
  int line = 0;
  if (text.empty()) return Status::no(file, ":1: the file is empty; its first line is '", kVersion, "'");
  while (!text.empty()) {
    ++line;
    Text one = cut(text, '\n');
    if (one.ends_with('\r')) one.remove_suffix(1);  // a checkout may have converted line ends
    const size_t before = reader.tuned.rules.size();
    if (Status s = reader.read(one, line); !s.ok()) return s.after(file, ":", line, ": ");
    if (reader.tuned.rules.size() > before) reader.tuned.rules.back().source = join(file, ":", line);
  }
  if (!reader.device_at || !reader.measured_at)
    return Status::no(file, ":", line, ": the file ends without a ", reader.device_at ? "measured" : "device", " line");
  out = std::move(reader.tuned);
  return Status::good();
}

std::string write_tuned(const Tuned& t) {
  std::string s = join(kVersion, "\n", line_of("device", t.device), line_of("measured", t.measured));
  for (const Rule& r : t.rules) s += line_of(r) + "\n";
  return s;
}

std::string line_of(const Rule& r) { return condition(r) + r.backend; }

bool is_ruled(const Problem& p) {
  return p.mask.k_step == 1 && !p.mask.blocks.q && word(p.variant).empty();
}

int64_t least_keys(const Rule& r, int64_t heads) {
  const int64_t by_work = r.min_work / heads + (r.min_work % heads ? 1 : 0);  // heads * keys may overflow an int64_t
  return std::max<int64_t>(r.min_len, by_work);
}

const Rule* match(const Problem& p, std::span<const Rule> rules) {
  if (!is_ruled(p)) return nullptr;
  const int64_t heads = int64_t(p.batch) * p.heads_q;
  const Rule* best = nullptr;
  for (const Rule& r : rules) {
    const bool same = r.pass == p.pass && r.dtype == p.dtype.q && r.dim_qk == p.dim_qk && r.dim_v == p.dim_v &&
                      r.mask == p.mask.kind && r.decode == (p.len_q <= kDecodeQueries);
    if (same && r.min_heads <= heads && heads <= r.max_heads && least_keys(r, heads) <= p.len_k &&
        (!best || std::pair(r.min_len, r.min_work) >= std::pair(best->min_len, best->min_work)))
      best = &r;
  }
  return best;
}

}  // namespace attune
