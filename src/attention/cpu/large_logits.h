// SPDX-License-Identifier: Apache-2.0
// P and dS for rows with a large log-sum-exp (core/large_logit.h), for a panel of keys and n queries, as
// CpuKernels::gradients computes them. The exponents are computed here, on plain rows: the case is too rare for a loop
// per instruction set.
#pragma once
#include <cstddef>

#include "core/large_logit.h"
#include "machine/cpu/kernels.h"

namespace attune::cpu {

// `scale` is used unless packed q contains it. `number`, a block bias, is added to each logit of large rows; other rows
// have it subtracted from their log-sum-exps already. Returns the sum of dS. `summed`: the sum is needed, so
// exponentials are as accurate as f32 allows.
inline float gradients(const CpuKernels& m, bool large_logits, const float* s, const float* dp, int n, float scale,
                      const float* lse, const float* delta, std::byte* p, std::byte* ds, float number = 0.f,
                      bool summed = false) {
  CpuKernels::Gradients* const run = summed && m.summed_gradients ? m.summed_gradients : m.gradients;
  if (m.scale_in_q) scale = 1.f;
  if (!large_logits) return run(s, dp, n, scale, lse, delta, p, ds);
  constexpr int kMostRows = 64, kMostKeys = 32;  // upper bounds for all instruction sets
  constexpr float kZeros[kMostKeys] = {};
  float plain[kMostRows * kMostKeys], exponents[kMostRows * kMostKeys], sum = 0.f;
  for (int j = 0; j < n; j += m.keys) {
    const int64_t at = int64_t(j) * m.rows;
    m.read_scores(s + at, m.keys, plain, m.keys);
    for (int x = 0; x < m.rows * m.keys; ++x)
      plain[x] = exponent_of_weight(plain[x] * scale + number, lse[j + x % m.keys]);
    m.write_scores(plain, m.keys, m.keys, exponents);
    sum += run(exponents, dp + at, m.keys, 1.f, kZeros, delta + j, p + at * m.operand_bytes,
               ds + at * m.operand_bytes);
  }
  return sum;
}

}  // namespace attune::cpu
