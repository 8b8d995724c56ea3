// Rows whose log-sum-exp is far (core/large_logit.h). P and dS of a panel of keys and n queries, as
// CpuKernels::gradients makes them: exponents are then made here, on plain rows, for no machine has a loop for what is
// so rare.
#pragma once
#include <cstddef>

#include "core/large_logit.h"
#include "machine/cpu/kernels.h"

namespace attune::cpu {

// `scale` is used unless packed q has it. `number`, of a block, is added to each logit of far rows; others have it off
// their log-sum-exps already. Returns the sum of dS; `summed`: somebody
// wants it, so exponentials are as near as f32 has them.
inline float gradients(const CpuKernels& m, bool large_logits, const float* s, const float* dp, int n, float scale,
                      const float* lse, const float* delta, std::byte* p, std::byte* ds, float number = 0.f,
                      bool summed = false) {
  CpuKernels::Gradients* const run = summed && m.summed_gradients ? m.summed_gradients : m.gradients;
  if (m.scale_in_q) scale = 1.f;
  if (!large_logits) return run(s, dp, n, scale, lse, delta, p, ds);
  constexpr int kMostRows = 64, kMostKeys = 32;  // on any machine
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
