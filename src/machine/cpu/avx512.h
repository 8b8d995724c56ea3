// SPDX-License-Identifier: Apache-2.0
// A vector of 16 floats, for the AVX-512 kernels. The register tile is 48 x 8: 24 accumulators, three vectors of rows
// and a broadcast, 28 of 32 registers; 11 loads for 24 multiply-adds fit two load ports.
#pragma once
#include "machine/cpu/x86.h"

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns about `__Y = __Y` in its own _mm512_undefined_ps, wherever an intrinsic that uses it is inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace attune {
namespace {

// Rounds like _mm512_cvtne2ps_pbh.
inline float rounded_weight(float x) { return float(Bf16(x)); }

struct Avx512 {
  using F = __m512;
  static constexpr int kLanes = 16, kTileN = 8;

  static F load(const float* x) { return _mm512_loadu_ps(x); }
  static void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static F broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  // Assembly, so that the accumulator is overwritten: g++ 12 selects a form that overwrites a factor, and then copies
  // (63 instructions for 24 multiply-adds). A broadcast stays in its own register: as a memory operand of its three
  // multiply-adds it would take three loads.
  [[gnu::always_inline]] static inline F fma(F a, F b, F c) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
  }

  static F between(const int* first, int j, const int* last, F x) {
    const __m512i at = _mm512_set1_epi32(j);
    const __mmask16 from = _mm512_cmple_epi32_mask(_mm512_loadu_si512(first), at);
    const __mmask16 inside = _mm512_mask_cmpgt_epi32_mask(from, _mm512_loadu_si512(last), at);
    return _mm512_mask_mov_ps(set1(x86::minus_inf()), inside, x);
  }
  static F zero_if_minus_inf(F x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(x86::minus_inf()), _CMP_NEQ_UQ), x);
  }

  // Relative error 7.5e-8. VSCALEF multiplies by 2^n and saturates to 0 and infinity without separate exponent
  // handling. The bound only keeps -inf from becoming -inf + inf. It comes first: max returns its second operand if
  // either is NaN.
  static F exp2(F x) {
    x = _mm512_max_ps(set1(-1e4f), x);
    const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = sub(x, n);
    F y = set1(1.327647198e-03f);
    for (const float c : {9.675541334e-03f, 5.550713274e-02f, 2.402211972e-01f, 6.931469671e-01f, 1.000000072e+00f})
      y = _mm512_fmadd_ps(y, f, set1(c));
    return _mm512_scalef_ps(y, n);
  }
};

// From 2^24 on (core/large_logit.h) a reference is rounded by 1 or more, and that error must not reach a weight: its
// logit is rounded as well, before the reference is subtracted. Built with -ffp-contract=off.
inline bool any_large_logit(const float* ref, int n) {
  __mmask16 large = 0;
  for (int r = 0; r < n; r += 16) {
    const __m512 x = _mm512_loadu_ps(ref + r);
    large |= _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(x, _mm512_set1_ps(x86::minus_inf()), _CMP_NEQ_UQ),
                                   _mm512_abs_ps(x), _mm512_set1_ps(0x1p24f), _CMP_GE_OQ);
  }
  return large;
}
template <bool LargeLogits>
[[gnu::always_inline]] inline __m512 exponent(__m512 s, __m512 scale, __m512 ref) {
  return LargeLogits ? _mm512_sub_ps(_mm512_mul_ps(s, scale), ref) : _mm512_fmsub_ps(s, scale, ref);
}

}  // namespace
}  // namespace attune
