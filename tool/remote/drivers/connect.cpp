// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/connect.h"

#include <optional>

#include "tool/json_value.h"

namespace attune {
namespace {

// Protobuf: a key is the field's number and its wire type, 0 for a varint and 2 for bytes with a length.
enum Wire : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void add_varint(std::string& out, uint64_t x) {
  for (; x >= 0x80; x >>= 7) out += char((x & 0x7F) | 0x80);
  out += char(x);
}
void add_bytes(std::string& out, unsigned field, std::string_view bytes) {
  add_varint(out, field << 3 | kBytes), add_varint(out, bytes.size());
  out += bytes;
}

struct Field {
  unsigned number = 0;
  uint64_t value = 0;
  std::string_view bytes{};
};

// Takes the next field off the text; nothing at its end or where it is broken.
std::optional<uint64_t> take_varint(std::string_view& in) {
  uint64_t x = 0;
  for (unsigned shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const unsigned char c = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    x |= uint64_t(c & 0x7F) << shift;
    if (c < 0x80) return x;
  }
  return std::nullopt;
}
std::optional<Field> take_field(std::string_view& in) {
  const auto key = take_varint(in);
  if (!key) return std::nullopt;
  Field f{.number = unsigned(*key >> 3)};
  size_t skipped = 0;
  switch (*key & 7) {
    case kVarint:
      if (const auto x = take_varint(in)) return f.value = *x, f;
      return std::nullopt;
    case kBytes:
      if (const auto size = take_varint(in); size && *size <= in.size()) {
        f.bytes = in.substr(0, size_t(*size));
        return in.remove_prefix(size_t(*size)), f;
      }
      return std::nullopt;
    case kFixed64: skipped = 8; break;
    case kFixed32: skipped = 4; break;
    default: return std::nullopt;
  }
  if (in.size() < skipped) return std::nullopt;
  return in.remove_prefix(skipped), f;
}
std::string_view member(std::string_view message, unsigned number) {
  std::string_view found;
  while (const auto f = take_field(message))
    if (f->number == number) found = f->bytes;
  return found;
}

// An event of the session: 2 is output (1 stdout, 2 stderr), 3 the end (1 exit code, zigzag).
void read_event(std::string_view event, CommandOutput& to, bool& ended) {
  while (const auto f = take_field(event)) {
    if (f->number == 2) {
      std::string_view data = f->bytes;
      while (const auto part = take_field(data)) (part->number == 2 ? to.err : to.out) += part->bytes;
    } else if (f->number == 3) {
      ended = true, to.code = 0;
      std::string_view end = f->bytes;
      while (const auto part = take_field(end))
        if (part->number == 1) to.code = int(int64_t(part->value >> 1) ^ -int64_t(part->value & 1));
    }
  }
}

constexpr size_t kHead = 5;  // flags, and the length as four bytes, the highest first
constexpr unsigned char kCompressed = 1, kLast = 2;

}  // namespace

std::string start_request(const std::vector<std::string>& words) {
  std::string command, request;
  for (size_t n = 0; n < words.size(); ++n) add_bytes(command, n ? 2 : 1, words[n]);
  add_bytes(request, 1, command);
  request += "\x20", request += '\0';  // stdin: false
  std::string out(1, '\0');
  for (int shift = 24; shift >= 0; shift -= 8) out += char(request.size() >> shift & 0xFF);
  return out + request;
}

Status read_stream(std::string_view stream, CommandOutput& to, bool& missing) {
  bool ended = false;
  missing = false;
  while (stream.size() >= kHead) {
    const auto byte = [&](size_t n) { return static_cast<unsigned char>(stream[n]); };
    const size_t size = size_t(byte(1)) << 24 | size_t(byte(2)) << 16 | size_t(byte(3)) << 8 | byte(4);
    if (size > stream.size() - kHead) break;
    const unsigned char flags = byte(0);
    const std::string_view message = stream.substr(kHead, size);
    stream.remove_prefix(kHead + size);
    if (flags & kCompressed) return Status::failure(Code::device, "the answer is compressed, which was not asked for");
    if (flags & kLast) {
      JsonValue trailer;
      if (!message.empty() && JsonValue::parse(message, trailer).ok() && trailer["error"].is_object()) {
        const std::string code = trailer["error"]["code"].text("unknown");
        missing = code == "not_found";
        return Status::failure(Code::device, code, ": ", trailer["error"]["message"].text("no reason given"));
      }
      continue;
    }
    read_event(member(message, 1), to, ended);
  }
  return ended ? Status::good() : Status::failure(Code::device, "the command's output ended without an exit code");
}

}  // namespace attune
