// SPDX-License-Identifier: Apache-2.0
// Matrix products on a GPU through cuBLASLt, opened at run time without CUDA headers: blas.cpp lists the few constants
// of its interface. Every build therefore has this code and reports if the library is missing.
#pragma once
#include <cstddef>
#include <string>

#include "core/number.h"
#include "core/status.h"

namespace attune::cuda {

// to = alpha x y + beta to: [m, n] = [m, k] [k, n], `batch` times, with contiguous rows. Either factor may be stored
// transposed. Sums are f32. It holds everything that the choice of a kernel depends on, without padding: its bytes are
// a key.
struct Product {
  DType in = DType::f32, out = DType::f32;         // out: f32, or as in
  int32_t m = 0, n = 0, k = 0, batch = 1;
  int32_t x_transposed = 0, y_transposed = 0;      // [k, m] and [n, k] in memory
  int32_t tf32 = 0;                                // f32 factors may be rounded to 11 bits
  int32_t device = 0;                              // the current one
  int64_t pitch_x = 0, pitch_y = 0, pitch_to = 0;  // elements from row to row
  int64_t step_x = 0, step_y = 0, step_to = 0;     // elements from matrix to matrix
  int64_t align = 16;                              // common alignment of all addresses and pitches, in bytes
};

struct Factors {
  const void *x = nullptr, *y = nullptr;
  void* to = nullptr;
  const void* plus = nullptr;  // operand of beta; null: `to` itself
  float alpha = 1.f, beta = 0.f;
};

// Scratch memory of a product; the caller provides it on every call.
inline constexpr size_t kBlasBytes = size_t(32) << 20;

// Good if cuBLASLt can be opened.
Status blas_found();

// Launches the product on the stream. The first product of a shape queries cuBLASLt for a kernel, on the host; later
// ones reuse it.
Status multiply(const Product&, const Factors&, void* scratch, void* stream);

}  // namespace attune::cuda
