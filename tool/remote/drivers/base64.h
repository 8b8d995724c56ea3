// SPDX-License-Identifier: Apache-2.0
// Bytes that travel inside JSON.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace attune {

inline bool from_base64(std::string_view text, std::string& out) {
  out.clear();
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    uint32_t value;
    if (c >= 'A' && c <= 'Z') value = uint32_t(c - 'A');
    else if (c >= 'a' && c <= 'z') value = uint32_t(c - 'a') + 26;
    else if (c >= '0' && c <= '9') value = uint32_t(c - '0') + 52;
    else if (c == '+') value = 62;
    else if (c == '/') value = 63;
    else if (c == '=') break;
    else return false;
    bits = bits << 6 | value, held += 6;
    if (held >= 8) held -= 8, out += char(bits >> held & 0xFF);
  }
  return true;
}

}  // namespace attune
