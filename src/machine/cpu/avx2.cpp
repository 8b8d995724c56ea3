// SPDX-License-Identifier: Apache-2.0
// x86 AVX2 with FMA; arithmetic is f32 for every stored dtype. The register tile is 24 x 4: 12 accumulators, three
// vectors of rows and one broadcast fill the 16 registers exactly. 7 loads for 12 multiply-adds leave a load port idle,
// and 12 chains cover a latency of 4 at two per cycle (they need 8).
#include "machine/cpu/x86.h"

namespace attune {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kLanes = 8, kTileN = 4;

  static F load(const float* x) { return _mm256_loadu_ps(x); }
  static void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static F broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  // Assembly, so that the accumulator is overwritten: g++ 12 selects a form that overwrites a factor, and then copies.
  [[gnu::always_inline]] static inline F fma(F a, F b, F c) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
  }

  static F between(const int* first, int j, const int* last, F x) {
    const __m256i at = _mm256_set1_epi32(j);
    const __m256i before = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)), at);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(last)), at);
    return _mm256_blendv_ps(set1(x86::minus_inf()), x, _mm256_castsi256_ps(_mm256_andnot_si256(before, inside)));
  }
  static F zero_if_minus_inf(F x) {
    return _mm256_and_ps(x, _mm256_cmp_ps(x, set1(x86::minus_inf()), _CMP_NEQ_UQ));
  }

  // Relative error 7.5e-8, exactly 0 from 2^-127 down. Adding 1.5 * 2^23 + 127 rounds x to an integer n and leaves the
  // biased exponent of 2^n in the low bits; a minimax polynomial handles the rest. The bounds come first in max and
  // min, which return their second operand if either is NaN.
  static F exp2(F x) {
    const F shift = set1(12582912.f + 127.f);
    x = _mm256_min_ps(set1(128.f), _mm256_max_ps(set1(-127.f), x));
    const F rounded = add(x, shift), f = sub(x, sub(rounded, shift));
    F y = set1(1.327647198e-03f);
    for (const float c : {9.675541334e-03f, 5.550713274e-02f, 2.402211972e-01f, 6.931469671e-01f, 1.000000072e+00f})
      y = _mm256_fmadd_ps(y, f, set1(c));
    return mul(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(rounded), 23)));
  }
};

using Kernels = x86::Float32<Avx2>;

}  // namespace

const CpuKernels kAvx2Kernels[3] = {Kernels::kernels<float>("avx2", Feature::avx2, DType::f32),
                                    Kernels::kernels<F16>("avx2", Feature::avx2, DType::f16),
                                    Kernels::kernels<Bf16>("avx2", Feature::avx2, DType::bf16)};

}  // namespace attune
