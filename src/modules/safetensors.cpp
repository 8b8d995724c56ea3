// SPDX-License-Identifier: Apache-2.0
#include "modules/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "machine/files.h"
#include "modules/module.h"

namespace attune {
namespace {

constexpr uint64_t kMostHeader = 100'000'000;  // bytes, as the format's own reader allows
constexpr size_t kMostAxes = 16;

struct Known { std::string_view word; int bits; DType dtype; };
constexpr Known kKnown[] = {{"F64", 64, DType::f64},  {"F32", 32, DType::f32},   {"F16", 16, DType::f16},
                            {"BF16", 16, DType::bf16}, {"F8_E4M3", 8, DType::none}, {"F8_E5M2", 8, DType::none},
                            {"I64", 64, DType::none}, {"I32", 32, DType::none},  {"I16", 16, DType::none},
                            {"I8", 8, DType::none},   {"U64", 64, DType::none},  {"U32", 32, DType::none},
                            {"U16", 16, DType::none}, {"U8", 8, DType::none},    {"BOOL", 8, DType::none}};

// The JSON subset of the header: objects, strings, arrays of numbers. After the first error every step is a no-op.
struct Json {
  std::string_view text;
  size_t at = 0;
  std::string wrong{};

  bool fine() const { return wrong.empty(); }
  void miss(std::string_view what) {
    if (fine()) wrong = join("expected ", what, " at byte ", at);
  }
  void space() {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) ++at;
  }
  bool take(char letter) {
    space();
    if (!fine() || at >= text.size() || text[at] != letter) return false;
    return ++at, true;
  }
  void expect(char letter) {
    if (!take(letter)) miss(std::string_view(&letter, 1));
  }
  uint32_t hex4() {
    uint32_t x = 0;
    const char* first = text.data() + at;
    const auto [end, error] = std::from_chars(first, text.data() + std::min(at + 4, text.size()), x, 16);
    if (error != std::errc{} || end != first + 4) miss("four hexadecimal digits");
    else at += 4;
    return x;
  }
  void append_code(std::string& to, uint32_t code) {
    if (code < 0x80) to += char(code);
    else if (code < 0x800) to += char(0xC0 | code >> 6), to += char(0x80 | (code & 63));
    else if (code < 0x10000)
      to += char(0xE0 | code >> 12), to += char(0x80 | (code >> 6 & 63)), to += char(0x80 | (code & 63));
    else
      to += char(0xF0 | code >> 18), to += char(0x80 | (code >> 12 & 63)), to += char(0x80 | (code >> 6 & 63)),
          to += char(0x80 | (code & 63));
  }
  std::string string() {
    std::string s;
    expect('"');
    while (fine()) {
      if (at >= text.size()) return miss("the end of a string"), s;
      const char c = text[at++];
      if (c == '"') return s;
      if (uint8_t(c) < 0x20) return --at, miss("no control character in a string"), s;
      if (c != '\\') {
        s += c;
        continue;
      }
      constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
      const char e = at < text.size() ? text[at++] : '\0';
      if (const size_t n = kEscapes.find(e); n != kEscapes.npos && e) {
        s += kMeant[n];
      } else if (e == 'u') {
        uint32_t code = hex4();
        if (code >= 0xD800 && code < 0xDC00) {  // half of a surrogate pair
          if (text.substr(at, 2) != "\\u") return miss("the second half of a character"), s;
          at += 2;
          const uint32_t low = hex4();
          if (low < 0xDC00 || low > 0xDFFF) return miss("the second half of a character"), s;
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code < 0xE000) {
          return miss("the first half of a character"), s;
        }
        if (!code) return miss("a character that is not 0"), s;  // a message would end at a NUL
        append_code(s, code);
      } else {
        return miss("an escape"), s;
      }
    }
    return s;
  }
  uint64_t number() {
    space();
    uint64_t x = 0;
    const char* first = text.data() + std::min(at, text.size());
    const auto [end, error] = std::from_chars(first, text.data() + text.size(), x);
    const bool leading = end - first > 1 && *first == '0';
    if (error != std::errc{} || leading) miss("an integer in 0 ... 2^64 - 1");
    else at += size_t(end - first);
    return x;
  }
  template <class F>
  void object(F member) {  // member(name)
    expect('{');
    if (take('}')) return;
    do {
      const std::string name = string();
      expect(':');
      if (fine()) member(name);
    } while (take(','));
    expect('}');
  }
  std::vector<uint64_t> numbers() {
    std::vector<uint64_t> all;
    expect('[');
    if (take(']')) return all;
    do {
      if (all.size() == kMostAxes) return miss("at most 16 numbers"), all;
      all.push_back(number());
    } while (take(','));
    expect(']');
    return all;
  }
};

Status read_tensor(Json& j, FileTensor& t) {
  bool has[3] = {};
  const auto once = [&](int n) {
    if (has[n]) j.miss("each member once");
    has[n] = true;
  };
  std::vector<uint64_t> offsets, shape;
  j.object([&](const std::string& name) {
    if (name == "dtype") once(0), t.dtype = j.string();
    else if (name == "shape") once(1), shape = j.numbers();
    else if (name == "data_offsets") once(2), offsets = j.numbers();
    else j.miss("dtype, shape or data_offsets");
  });
  if (!j.fine()) return Status::good();  // reported by the caller
  if (!has[0] || !has[1] || !has[2]) return Status::no("'", t.name, "' lacks dtype, shape or data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    return Status::no("'", t.name, "': data_offsets are not [first, last]");
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.word == t.dtype; });
  if (known == std::end(kKnown)) return Status::no("'", t.name, "': dtype '", t.dtype, "' is unknown");
  uint64_t bytes = uint64_t(known->bits / 8);
  for (const uint64_t n : shape) {
    if (n > INT64_MAX || __builtin_mul_overflow(bytes, n, &bytes))
      return Status::no("'", t.name, "' is over 2^64 bytes");
    t.shape.push_back(int64_t(n));
  }
  t.first = offsets[0], t.last = offsets[1];
  if (t.last - t.first != bytes)
    return Status::no("'", t.name, "' has ", t.last - t.first, " bytes of data; its shape and dtype need ", bytes);
  return Status::good();
}

void append_quoted(std::string& to, std::string_view text) {
  to += '"';
  for (const char c : text) {
    char code[8];
    if (c == '"' || c == '\\') to += '\\', to += c;
    else if (uint8_t(c) < 0x20) std::snprintf(code, sizeof code, "\\u%04x", unsigned(c)), to += code;
    else to += c;
  }
  to += '"';
}

std::string system_error() { return std::strerror(errno); }

float widened(DType t, const std::byte* from, size_t n) {
  if (t == DType::f64) return float(reinterpret_cast<const double*>(from)[n]);
  if (t == DType::f32) return reinterpret_cast<const float*>(from)[n];
  return t == DType::f16 ? float(reinterpret_cast<const F16*>(from)[n]) : float(reinterpret_cast<const Bf16*>(from)[n]);
}

void narrowed(float x, DType t, std::byte* to, size_t n) {
  if (t == DType::f32) reinterpret_cast<float*>(to)[n] = x;
  else if (t == DType::f16) reinterpret_cast<F16*>(to)[n] = F16(x);
  else reinterpret_cast<Bf16*>(to)[n] = Bf16(x);
}

std::string text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (const int64_t n : shape) s += join(s.size() > 1 ? ", " : "", n);
  return s + "]";
}

Status all_of(int file, void* data, uint64_t bytes, uint64_t at) {
  auto* to = static_cast<char*>(data);
  while (bytes) {
    const ssize_t n = pread(file, to, std::min<uint64_t>(bytes, 1 << 30), off_t(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::no(system_error());
    if (n == 0) return Status::no("ends too early");
    to += n, at += uint64_t(n), bytes -= uint64_t(n);
  }
  return Status::good();
}

// Whether text is UTF-8, as JSON must be: no stray or missing bytes, overlong forms, surrogates or codes above 10FFFF.
bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t n) { return at + n < text.size() ? uint8_t(text[at + n]) : 0u; };
    const unsigned first = byte(0);
    if ((first >= 0x80 && first < 0xC2) || first >= 0xF5) return false;
    const size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    for (size_t n = 1; n <= more; ++n)
      if ((byte(n) & 0xC0) != 0x80) return false;
    if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0) || (first == 0xF0 && byte(1) < 0x90) ||
        (first == 0xF4 && byte(1) >= 0x90))
      return false;
    at += more + 1;
  }
  return true;
}

}  // namespace

DType dtype_of(std::string_view word) {
  for (const Known& k : kKnown)
    if (k.word == word) return k.dtype;
  return DType::none;
}

std::string_view word_of(DType t) {
  for (const Known& k : kKnown)
    if (k.dtype == t && t != DType::none) return k.word;
  return "";
}

Status read_header(std::string_view header, uint64_t file_bytes, std::vector<FileTensor>& out) {
  out.clear();
  Json j{header};
  Status wrong;
  std::set<std::string> names;
  j.object([&](const std::string& name) {
    if (!wrong.ok()) return j.miss("nothing more");
    if (name == "__metadata__") return j.object([&](const std::string&) { (void)j.string(); });
    if (!names.insert(name).second) return void(wrong = Status::no("'", name, "' occurs twice"));
    FileTensor t{.name = name};
    wrong = read_tensor(j, t);
    if (j.fine() && wrong.ok()) out.push_back(std::move(t));
  });
  j.space();
  if (j.fine() && wrong.ok() && j.at != header.size()) j.miss("the end of the header");
  if (!wrong.ok()) return wrong;
  if (!j.fine()) return Status::no("header: ", j.wrong);
  std::sort(out.begin(), out.end(), [](const FileTensor& a, const FileTensor& b) {
    return a.first != b.first ? a.first < b.first : a.last < b.last;
  });
  uint64_t at = 0;
  for (const FileTensor& t : out) {
    if (t.first != at) return Status::no("data of '", t.name, "' begins at ", t.first, "; expected ", at);
    at = t.last;
  }
  const uint64_t data = file_bytes - 8 - header.size();
  if (at != data) return Status::no("has ", data, " bytes of data; its tensors need ", at);
  return Status::good();
}

std::string write_header(const std::vector<FileTensor>& tensors) {
  std::string json = "{";
  for (const FileTensor& t : tensors) {
    if (json.size() > 1) json += ',';
    append_quoted(json, t.name);
    json += join(":{\"dtype\":\"", t.dtype, "\",\"shape\":", text(t.shape), ",\"data_offsets\":[", t.first, ",", t.last,
                 "]}");
  }
  json += '}';
  while (json.size() % 8) json += ' ';
  std::string whole(8, '\0');
  for (int n = 0; n < 8; ++n) whole[size_t(n)] = char(uint64_t(json.size()) >> (8 * n));
  return whole + json;
}

TensorFile::~TensorFile() {
  if (file_ >= 0) ::close(file_);
}

Status TensorFile::open(const std::string& path) {
  const auto no = [&](const auto&... why) { return Status::no(path, ": ", why...); };
  path_ = path;
  if (file_ >= 0) ::close(file_);
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // would block on a pipe
  struct stat about{};
  if (file_ < 0 || fstat(file_, &about)) return no(system_error());
  const auto bytes = uint64_t(about.st_size);
  unsigned char length[8];
  if (!S_ISREG(about.st_mode)) return no("is not a safetensors file: it is not a regular file");
  if (bytes < 8) return no("is not a safetensors file: it has ", bytes, " bytes, fewer than 8");
  if (Status s = all_of(file_, length, 8, 0); !s.ok()) return s.after(path, ": ");
  uint64_t header = 0;
  for (int n = 0; n < 8; ++n) header |= uint64_t(length[n]) << (8 * n);
  if (header > kMostHeader || header > bytes - 8)
    return no("is not a safetensors file: its header claims ", header, " of ", bytes, " bytes");
  std::string json(header, '\0');
  if (Status s = all_of(file_, json.data(), header, 8); !s.ok()) return s.after(path, ": ");
  data_at_ = 8 + header;
  return read_header(json, bytes, tensors_).after(path, ": ");
}

const FileTensor* TensorFile::find(std::string_view name) const {
  for (const FileTensor& t : tensors_)
    if (t.name == name) return &t;
  return nullptr;
}

Status TensorFile::read(const FileTensor& t, DType dtype, void* to) const {
  const DType from = dtype_of(t.dtype);
  const std::string who = join(path_, ": '", t.name, "': ");
  if (from == DType::none) return Status::no(who, "dtype ", t.dtype, " is not one of F64, F32, F16, BF16");
  if (from == dtype) return all_of(file_, to, t.last - t.first, data_at_ + t.first).after(who);
  std::vector<std::byte> piece(size_t(1) << 22);
  const uint64_t size = uint64_t(size_of(from));
  for (uint64_t at = t.first, n = 0; at < t.last;) {
    const uint64_t bytes = std::min<uint64_t>(piece.size(), t.last - at);
    if (Status s = all_of(file_, piece.data(), bytes, data_at_ + at); !s.ok()) return s.after(who);
    for (uint64_t i = 0; i < bytes / size; ++i, ++n)
      narrowed(widened(from, piece.data(), size_t(i)), dtype, static_cast<std::byte*>(to), size_t(n));
    at += bytes;
  }
  return Status::good();
}

Status load(const Module& module, const std::string& path, std::string_view prefix, bool convert) {
  TensorFile file;
  if (Status s = file.open(path); !s.ok()) return s;
  const auto& parameters = module.graph().parameters;
  std::vector<const FileTensor*> found;
  for (const Parameter& p : parameters) {
    const std::string wanted = join(prefix, p.name);
    const FileTensor* t = file.find(wanted);
    const auto no = [&](const auto&... why) { return Status::no(path, ": '", wanted, "' ", why...); };
    if (!t) return no("is missing; the module requires it");
    if (t->shape != p.shape) return no("is ", text(t->shape), ", not ", text(p.shape));
    const DType dtype = dtype_of(t->dtype);
    if (dtype != p.dtype && !(convert && dtype != DType::none))
      return no("is ", t->dtype, ", not ", word_of(p.dtype), convert ? "" : "; conversion was not requested");
    found.push_back(t);
  }
  std::vector<std::byte> host;
  for (size_t n = 0; n < parameters.size(); ++n) {
    const Parameter& p = parameters[n];
    host.resize(size_t(p.count()) * size_t(size_of(p.dtype)));
    if (Status s = file.read(*found[n], p.dtype, host.data()); !s.ok()) return s;
    if (Status s = module.write(p, host.data()); !s.ok()) return s;
  }
  return Status::good();
}

Status save(const Module& module, const std::string& path, std::string_view prefix) {
  std::vector<FileTensor> tensors;
  uint64_t at = 0;
  for (const Parameter& p : module.graph().parameters) {
    const uint64_t bytes = uint64_t(p.count()) * uint64_t(size_of(p.dtype));
    tensors.push_back({join(prefix, p.name), std::string(word_of(p.dtype)), p.shape, at, at + bytes});
    at += bytes;
  }
  if (!is_utf8(prefix)) return Status::no(path, ": the prefix of the names is not UTF-8, which the format requires");
  Replacement made;
  Status s = made.open(path);
  const std::string header = write_header(tensors);
  if (s.ok()) s = made.write(header.data(), header.size());
  std::vector<std::byte> host;
  for (const Parameter& p : module.graph().parameters) {
    if (!s.ok()) break;
    host.resize(size_t(p.count()) * size_t(size_of(p.dtype)));
    s = module.read(p, host.data());
    if (s.ok()) s = made.write(host.data(), host.size());
  }
  if (s.ok()) s = made.finish();
  return s.after(path, ": ");
}

}  // namespace attune
