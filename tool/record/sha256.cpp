// SPDX-License-Identifier: Apache-2.0
#include "tool/record/sha256.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace attune {
namespace {

using Words = std::array<uint32_t, 64>;

// FIPS 180-4: the first 32 bits of the fractions of square and cube roots of the first primes. A double has 52 bits of
// mantissa and the cube roots are below 7, so 32 bits of the fraction are exact.
struct Constants {
  Words cube{};
  std::array<uint32_t, 8> square{};
};
Constants constants() {
  Constants c;
  int found = 0;
  for (int n = 2; found < 64; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d;
    if (!prime) continue;
    const auto fraction = [](double root) { return uint32_t((root - std::floor(root)) * 4294967296.0); };
    if (found < 8) c.square[size_t(found)] = fraction(std::sqrt(double(n)));
    c.cube[size_t(found++)] = fraction(std::cbrt(double(n)));
  }
  return c;
}

void block(std::array<uint32_t, 8>& state, const unsigned char* bytes, const Words& key) {
  Words w{};
  for (size_t n = 0; n < 16; ++n)
    w[n] = uint32_t(bytes[4 * n]) << 24 | uint32_t(bytes[4 * n + 1]) << 16 | uint32_t(bytes[4 * n + 2]) << 8 |
           uint32_t(bytes[4 * n + 3]);
  for (size_t n = 16; n < 64; ++n) {
    const uint32_t a = w[n - 15], b = w[n - 2];
    w[n] = w[n - 16] + w[n - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t n = 0; n < 64; ++n) {
    const uint32_t t =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + key[n] + w[n];
    const uint32_t u = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t, d = c, c = b, b = a, a = t + u;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t n = 0; n < 8; ++n) state[n] += add[n];
}

// Blocks are read where they lie; only the last one or two, which hold the padding, are copied.
std::array<unsigned char, 32> digest(std::string_view text) {
  static const Constants c = constants();
  const size_t whole = text.size() / 64 * 64;
  std::string padded(text.substr(whole));
  padded += char(0x80);
  while (padded.size() % 64 != 56) padded += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) padded += char(uint64_t(text.size()) * 8 >> shift & 255);
  std::array<uint32_t, 8> state = c.square;
  for (const std::string_view part : {text.substr(0, whole), std::string_view(padded)})
    for (size_t at = 0; at < part.size(); at += 64)
      block(state, reinterpret_cast<const unsigned char*>(part.data()) + at, c.cube);
  std::array<unsigned char, 32> bytes;
  for (size_t n = 0; n < 32; ++n) bytes[n] = static_cast<unsigned char>(state[n / 4] >> (24 - 8 * (n % 4)) & 255);
  return bytes;
}

}  // namespace

std::string sha256_hex(std::string_view text) {
  std::string out;
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const unsigned char byte : digest(text)) out += kDigits[byte >> 4], out += kDigits[byte & 15];
  return out;
}

std::string sha256_base64(std::string_view text) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<uint32_t, 33> bytes{};  // 32 and a zero, so that the last group of three is full
  const std::array<unsigned char, 32> all = digest(text);
  std::copy(all.begin(), all.end(), bytes.begin());
  std::string out;
  for (size_t n = 0; n < 33; n += 3) {
    const uint32_t three = bytes[n] << 16 | bytes[n + 1] << 8 | bytes[n + 2];
    for (int shift = 18; shift >= 0; shift -= 6) out += kLetters[three >> shift & 63];
  }
  out.back() = '=';
  return out;
}

}  // namespace attune
