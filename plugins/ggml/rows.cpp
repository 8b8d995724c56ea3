// SPDX-License-Identifier: Apache-2.0
#include "plugins/ggml/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/number.h"

// Plain loops, compiled once for each width of vectors and selected when the library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ATTUNE_WIDTHS [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define ATTUNE_WIDTHS
#endif

namespace attune::ggml {
namespace {

struct Q8 {
  uint16_t scale;
  int8_t x[kBlock];
};
struct Q4 {
  uint16_t scale;
  uint8_t x[kBlock / 2];
};
static_assert(sizeof(Q8) == 34 && sizeof(Q4) == 18);

// Without a branch for subnormal numbers; a scale that is not finite is rare.
inline float scale_of(uint16_t bits) {
  if ((bits & 0x7C00) == 0x7C00) return float(std::bit_cast<F16>(bits));
  const float magnitude = std::bit_cast<float>(uint32_t(bits & 0x7FFF) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | uint32_t(bits & 0x8000) << 16);
}

ATTUNE_WIDTHS void widen_q8(const Q8* __restrict from, int blocks, float* __restrict to) {
  for (int b = 0; b < blocks; ++b, to += kBlock) {
    const float scale = scale_of(from[b].scale);
    for (int j = 0; j < kBlock; ++j) to[j] = float(from[b].x[j]) * scale;
  }
}

ATTUNE_WIDTHS void widen_q4(const Q4* __restrict from, int blocks, float* __restrict to) {
  for (int b = 0; b < blocks; ++b, to += kBlock) {
    const float scale = scale_of(from[b].scale);
    for (int j = 0; j < kBlock / 2; ++j) to[j] = float((from[b].x[j] & 15) - 8) * scale;
    for (int j = 0; j < kBlock / 2; ++j) to[kBlock / 2 + j] = float((from[b].x[j] >> 4) - 8) * scale;
  }
}

constexpr int kLanes = 16;  // partial results, so that a maximum vectorizes

float largest_of(const float (&lane)[kLanes]) { return *std::max_element(lane, lane + kLanes); }

}  // namespace

void widen_quantized(Stored stored, const void* row, int dim, float* to) {
  if (stored == Stored::q8_0)
    widen_q8(static_cast<const Q8*>(row), dim / kBlock, to);
  else
    widen_q4(static_cast<const Q4*>(row), dim / kBlock, to);
}

ATTUNE_WIDTHS float add_numbers(const float* __restrict numbers, float slope, int n, float* __restrict x) {
  float lane[kLanes];
  std::fill_n(lane, kLanes, -INFINITY);
  int j = 0;
  for (; j + kLanes <= n; j += kLanes)
    for (int e = 0; e < kLanes; ++e) {
      const float by = numbers[j + e], sum = x[j + e] + slope * by;
      x[j + e] = by == -INFINITY ? -INFINITY : sum;
      lane[e] = x[j + e] > lane[e] ? x[j + e] : lane[e];
    }
  for (; j < n; ++j) {
    x[j] = numbers[j] == -INFINITY ? -INFINITY : x[j] + slope * numbers[j];
    lane[0] = x[j] > lane[0] ? x[j] : lane[0];
  }
  return largest_of(lane);
}

ATTUNE_WIDTHS float largest(const float* x, int n) {
  float lane[kLanes];
  std::fill_n(lane, kLanes, -INFINITY);
  int j = 0;
  for (; j + kLanes <= n; j += kLanes)
    for (int e = 0; e < kLanes; ++e) lane[e] = x[j + e] > lane[e] ? x[j + e] : lane[e];
  for (; j < n; ++j) lane[0] = x[j] > lane[0] ? x[j] : lane[0];
  return largest_of(lane);
}

}  // namespace attune::ggml
