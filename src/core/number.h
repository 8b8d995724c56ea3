// SPDX-License-Identifier: Apache-2.0
// The number formats of tensors. They are storage only: arithmetic uses f32 or f64. Conversions round to nearest even
// and preserve NaN. f16 and bf16 overflow to infinity; e4m3, which has no infinity, saturates to 448.
#pragma once
#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define ATTUNE_HD __host__ __device__
#else
#define ATTUNE_HD
#endif

namespace attune {

enum class DType : int32_t { none, f64, f32, f16, bf16, e4m3, i32, i64 };

// One hex digit per dtype, lowest first: a table would sit in slow memory on a GPU.
constexpr int size_of(DType t) { return int(0x84122480u >> (4 * int(t)) & 15); }
static_assert(size_of(DType::none) == 0 && size_of(DType::f64) == 8 && size_of(DType::f32) == 4 &&
              size_of(DType::f16) == 2 && size_of(DType::bf16) == 2 && size_of(DType::e4m3) == 1 &&
              size_of(DType::i32) == 4 && size_of(DType::i64) == 8);

// Half an ulp relative to the value: the largest relative rounding error of the format.
constexpr double rounding_of(DType t) {
  constexpr double half_ulp[] = {0, 0x1p-53, 0x1p-24, 0x1p-11, 0x1p-8, 0x1p-4, 0, 0};
  return half_ulp[int(t)];
}

namespace detail {

// Converts the bits of an f32 without its sign to a float with `mantissa` stored bits and exponent bias `bias`. A carry
// into the exponent is the correct rounding. The caller handles infinity and NaN.
constexpr uint32_t narrow(uint32_t magnitude, int mantissa, int bias) {
  const int drop = 23 - mantissa;
  const int exponent = int(magnitude >> 23) - 127 + bias;  // in the target format
  if (exponent >= 1) {
    const uint32_t rebased = magnitude - (uint32_t(127 - bias) << 23);
    return (rebased + (1u << (drop - 1)) - 1 + (rebased >> drop & 1)) >> drop;
  }
  const int shift = drop + 1 - exponent;  // subnormal: the implicit one becomes explicit
  if (shift > 24 + 1) return 0;
  const uint32_t whole = (magnitude & 0x7FFFFF) | 0x800000;
  return (whole + (1u << (shift - 1)) - 1 + (whole >> shift & 1)) >> shift;
}

constexpr float widen(uint32_t magnitude, int mantissa, int bias) {
  const uint32_t exponent = magnitude >> mantissa, fraction = magnitude & ((1u << mantissa) - 1);
  if (exponent) return std::bit_cast<float>((magnitude << (23 - mantissa)) + (uint32_t(127 - bias) << 23));
  return float(fraction) * std::bit_cast<float>(uint32_t(127 + 1 - bias - mantissa) << 23);
}

constexpr float signed_like(uint32_t sign_bit, float magnitude) { return sign_bit ? -magnitude : magnitude; }

}  // namespace detail

struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  constexpr explicit Bf16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    bits = uint16_t(x != x ? 0x7FC0 | u >> 16 : (u + 0x7FFF + (u >> 16 & 1)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

struct F16 {
  uint16_t bits = 0;
  F16() = default;
  constexpr explicit F16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7FFFFFFF, sign = u >> 16 & 0x8000;
    const uint32_t half = magnitude > 0x7F800000 ? 0x7E00
                          : magnitude >= 0x477FF000 ? 0x7C00  // 65520 and above round past 65504
                                                    : detail::narrow(magnitude, 10, 15);
    bits = uint16_t(sign | half);
  }
  constexpr operator float() const {
    const uint32_t magnitude = bits & 0x7FFF;
    if (magnitude >= 0x7C00)
      return std::bit_cast<float>(uint32_t(bits & 0x8000) << 16 | 0x7F800000 | (magnitude & 0x3FF) << 13);
    return detail::signed_like(bits >> 15, detail::widen(magnitude, 10, 15));
  }
};

struct E4m3 {
  uint8_t bits = 0;
  E4m3() = default;
  constexpr explicit E4m3(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7FFFFFFF, sign = u >> 24 & 0x80;
    const uint32_t small = magnitude > 0x7F800000 ? 0x7F
                           : magnitude >= 0x43E80000 ? 0x7E  // 464 is half way to the value that 0x7F would encode
                                                     : detail::narrow(magnitude, 3, 7);
    bits = uint8_t(sign | (small == 0x7F && magnitude <= 0x7F800000 ? 0x7E : small));
  }
  constexpr operator float() const {
    const uint32_t magnitude = bits & 0x7F;
    if (magnitude == 0x7F) return std::bit_cast<float>(uint32_t(bits & 0x80) << 24 | 0x7FC00000);
    return detail::signed_like(bits >> 7, detail::widen(magnitude, 3, 7));
  }
};

}  // namespace attune
