// SPDX-License-Identifier: Apache-2.0
// Rows of q, k, v and out as ggml stores them.
#pragma once
#include <cstdint>

namespace attune::ggml {

// q8_0 and q4_0 are blocks of 32 numbers: an f16 scale, then 32 signed bytes, or 16 bytes of two numbers each (the low
// half is number j, the high half number 16 + j) that are 8 too large.
enum class Stored { f32, f16, bf16, q8_0, q4_0 };
inline constexpr int kBlock = 32;
constexpr bool is_quantized(Stored t) { return t == Stored::q8_0 || t == Stored::q4_0; }

struct Rows {
  char* data = nullptr;
  Stored stored = Stored::f32;
  int dim = 0;
  int64_t row = 0, head = 0, batch = 0;  // bytes from one row, one head, one sequence to the next

  char* at(int b, int h, int64_t i) const { return data + b * batch + h * head + i * row; }
};

// Converts a quantized row of `dim` numbers, a multiple of 32, to f32.
void widen_quantized(Stored, const void* row, int dim, float* to);

// x += numbers * slope for n logits, where hidden ones become -inf; returns the largest.
float add_numbers(const float* numbers, float slope, int n, float* x);
// The largest of n numbers; a NaN is passed over.
float largest(const float* x, int n);

}  // namespace attune::ggml
