// SPDX-License-Identifier: Apache-2.0
#include "tool/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "tool/table.h"

namespace attune {
namespace {

// Bytes of the UTF-8 character that begins with this byte; 0 if none does.
size_t length_of(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

bool is_hidden(uint32_t code) {
  const bool control = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
  const bool direction = code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
                         (code >= 0x2066 && code <= 0x2069);
  return control || direction || code == 0x2028 || code == 0x2029;  // these two end a line
}

std::string_view sequence(char mark) {
  switch (mark) {
    case 'g': return "\x1b[32m";
    case 'r': return "\x1b[31m";
    case 'p': return "\x1b[0m";
    case 'e': return "\r\x1b[K";
    default: return "";
  }
}

bool whole_lines = false;

}  // namespace

bool Shown::obeyed(char c) {
  const bool begins = line_ == In::colon && c == ':', bracket = hashes_ >= 2 && c == '[';
  hashes_ = c == '#' ? hashes_ + 1 : 0;
  if (c == '\n' || c == '\r') line_ = In::blank;
  else if (line_ == In::blank && c == ':') line_ = In::colon;
  else if (line_ != In::blank || (c != ' ' && c != '\t')) line_ = In::text;
  return begins || bracket;
}

void keep_standard_files() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(file, F_GETFD) < 0 && errno == EBADF)  // the file takes the lowest number
      (void)::open("/dev/null", file == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

void keep_lines_whole() { whole_lines = true; }

std::string Shown::next(std::string_view piece) {
  constexpr unsigned char kMark = 0xFE;
  const std::string text = begun_.append(piece);
  begun_.clear();
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto first = (unsigned char)(text[at]);
    if (first == kMark) {
      if (at + 1 == text.size()) return begun_ = text.substr(at), out;
      if (text[at + 1] == kCommand[1]) at += 2, out += "::", line_ = In::text;
      else if (const std::string_view code = sequence(text[at + 1]); code.empty()) ++at;
      else at += 2, out += terminal_ ? code : "";
      continue;
    }
    const size_t size = length_of(first);
    size_t have = size ? 1 : 0;
    uint32_t code = size == 1 ? first : size == 2 ? first & 31 : size == 3 ? first & 15 : first & 7;
    while (have && have < size && at + have < text.size() && ((unsigned char)(text[at + have]) & 0xC0) == 0x80)
      code = code << 6 | ((unsigned char)(text[at + have++]) & 63);
    if (have && have < size && at + have == text.size()) return begun_ = text.substr(at), out;
    if (have < size || !size) {  // not UTF-8; a terminal with 8-bit controls obeys 0x80 ... 0x9F
      if (first >= 0x80 && first < 0xA0) out += fmt::format("\\u{:04x}", first);
      else out += char(first);
      ++at;
      continue;
    }
    if (const bool command = obeyed(text[at]); command || is_hidden(code)) out += fmt::format("\\u{:04x}", code);
    else out.append(text, at, size);
    at += size;
  }
  return out;
}

std::string Shown::rest() {
  std::string text = std::move(begun_);
  begun_.clear();
  return text == "\xfe" ? "" : text;
}

std::string shown(std::string_view text) {
  Shown all(false);
  std::string out = all.next(text);
  return out += all.rest();
}

ssize_t ShownOutput::write(void* stream, const char* data, size_t size) {
  auto& to = *static_cast<Stream*>(stream);
  try {
    const std::string_view all(data, size);
    // The rest of a line that an earlier write began is not broken: what is before it is not known here.
    const size_t first = to.begun ? std::min(all.find('\n'), size - 1) + 1 : 0;
    const int width = whole_lines ? 0 : to.width;
    const std::string text = to.shown.next(std::string(all.substr(0, first)) + wrapped(all.substr(first), width));
    to.begun = size ? all.back() != '\n' : to.begun;
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(to.file, text.data() + at, text.size() - at);
      if (n > 0) at += size_t(n);
      // A message that cannot be written is lost; it ends nothing, and the exit code tells of the work and the answer.
      else if (n == 0 || errno != EINTR) return to.file == STDERR_FILENO ? ssize_t(size) : 0;
    }
  } catch (...) {  // no memory
    return errno = ENOMEM, 0;
  }
  return ssize_t(size);
}

ShownOutput::ShownOutput()
    : streams_{{STDOUT_FILENO, terminal_width(STDOUT_FILENO), Shown(isatty(STDOUT_FILENO) == 1)},
               {STDERR_FILENO, terminal_width(STDERR_FILENO), Shown(isatty(STDERR_FILENO) == 1)}} {
  for (Stream& s : streams_) {
    FILE*& as = s.file == STDOUT_FILENO ? stdout : stderr;
    std::fflush(as);
    s.after = fopencookie(&s, "w", {.read = nullptr, .write = write, .seek = nullptr, .close = nullptr});
    if (!s.after) continue;
    setvbuf(s.after, nullptr, s.file == STDERR_FILENO ? _IONBF : isatty(s.file) ? _IOLBF : _IOFBF, BUFSIZ);
    s.before = as, as = s.after;
  }
}

ShownOutput::~ShownOutput() {
  for (Stream& s : streams_) {
    if (!s.before) continue;
    std::fflush(s.after);
    const std::string rest = s.shown.rest();
    if (!rest.empty() && ::write(s.file, rest.data(), rest.size()) < 0) {}  // the end of a broken character
    (s.file == STDOUT_FILENO ? stdout : stderr) = s.before;
    std::fclose(s.after);
  }
}

}  // namespace attune
