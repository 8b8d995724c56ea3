// SPDX-License-Identifier: Apache-2.0
// One row-major matrix product on the device of the matrices, for projections. On the CPU, f32 uses a BLAS if one can
// be opened, and everything else a built-in loop; on a GPU all products use cuBLASLt. Sums are f32; on the CPU, their
// order depends on the shape alone, not on the number of threads.
#pragma once
#include <cstddef>

#include "core/device.h"

namespace attune {

// to = alpha x y + beta plus: [m, n] = [m, k] [k, n]. Either factor may be stored transposed.
struct Gemm {
  DType in = DType::f32, out = DType::f32;          // f32, f16 or bf16; out: f32, or as in
  int32_t m = 0, n = 0, k = 0;
  bool x_transposed = false, y_transposed = false;  // [k, m] and [n, k] in memory
  int64_t pitch_x = 0, pitch_y = 0, pitch_to = 0;   // elements from row to row; plus has the pitch of to
  const void *x = nullptr, *y = nullptr;
  const void* plus = nullptr;                       // same type as `to`; null: `to` itself. Not read if beta is 0
  void* to = nullptr;
  float alpha = 1.f, beta = 0.f;
  bool tf32 = false;                                // f32 factors may be rounded to 11 bits, on a GPU
};

size_t gemm_bytes(const Device&);  // scratch memory of any product on the device
Status gemm(const Device&, const Gemm&, void* scratch, void* stream);

}  // namespace attune
