// SPDX-License-Identifier: Apache-2.0
// Code shared by the NEON kernels: unrolling, exp2, small transposes, loads of every stored dtype.
#pragma once
#include <arm_neon.h>

#include <limits>
#include <utility>

#include "core/number.h"
#include "machine/cpu/row_loops.h"

namespace attune::neon {
namespace {  // each file is built with its own flags, so its code needs internal linkage

// A loop that the compiler must unroll, with a constant index (vfmaq_laneq needs constant lanes).
template <int N, class F>
[[gnu::always_inline]] inline void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

[[gnu::always_inline]] inline float32x4_t minus_inf() { return vdupq_n_f32(-std::numeric_limits<float>::infinity()); }

// exp2(x - ref) for an integer ref that is not large (any_large_logit), exactly 0 at 2^-127 and below. Adding shift =
// 1.5 * 2^23 + 127 - ref rounds x to an integer and leaves the biased exponent of 2^n in the low bits; f = x - ref - n
// is then exact, and 2^f is a minimax polynomial on [-1/2, 1/2]. x is clamped so that n >= -127, whose exponent bits
// are those of 0.
struct Exp2Row {
  float32x4_t shift, floor;
  Exp2Row() = default;
  [[gnu::always_inline]] explicit Exp2Row(float32x4_t ref) {
    shift = vsubq_f32(vdupq_n_f32(12582912.0f + 127.0f), ref);
    floor = vsubq_f32(ref, vdupq_n_f32(127.0f));
  }
};

[[gnu::always_inline]] inline float32x4_t finite_ref(float32x4_t ref) {
  return vbslq_f32(vceqq_f32(ref, minus_inf()), vdupq_n_f32(0), ref);
}
// Beyond 2^20 a reference would cost the shift its last bits: it is then subtracted first.
inline bool any_large_logit(const float* ref, int n) {
  bool large = false;
  for (int r = 0; r < n; ++r)
    large |= ref[r] > 0x1p20f || (ref[r] < -0x1p20f && ref[r] != -std::numeric_limits<float>::infinity());
  return large;
}

// Degree 5: relative error 7.5e-8. Degree 3: 7.5e-5, well below the 2e-3 of rounding P to bf16.
//
// Vector i belongs to row set i % G. N vectors advance in step: one vector is a chain of about 35 cycles, and the
// scheduler does not look ahead enough to overlap chains written one after the other. c + y f is deliberately a
// multiply and an add (built with -ffp-contract=off): FMLA overwrites its addend, so a constant addend costs a move. On
// Neoverse-V1 a move feeding FMLA runs at one pair per cycle, a multiply and an add at 1.6.
template <int Degree, int N, int G>
[[gnu::always_inline]] inline void exp2(float32x4_t (&x)[N], const Exp2Row (&row)[G]) {
  float32x4_t f[N], two_n[N], lo[N], hi[N];
  auto line = [](float c, float32x4_t y, float32x4_t z) __attribute__((always_inline)) {
    return vaddq_f32(vmulq_f32(y, z), vdupq_n_f32(c));
  };
  auto k = [](float c) __attribute__((always_inline)) { return vdupq_n_f32(c); };
  unroll<N>([&](auto i) { x[i] = vmaxq_f32(x[i], row[i % G].floor); });
  unroll<N>([&](auto i) { two_n[i] = vaddq_f32(x[i], row[i % G].shift); });
  unroll<N>([&](auto i) { f[i] = vsubq_f32(two_n[i], row[i % G].shift); });
  unroll<N>([&](auto i) { f[i] = vsubq_f32(x[i], f[i]); });
  unroll<N>([&](auto i) { two_n[i] = vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(two_n[i]), 23)); });
  if constexpr (Degree == 3) {
    unroll<N>([&](auto i) { hi[i] = line(2.426111222e-01f, k(5.517166907e-02f), f[i]); });
    unroll<N>([&](auto i) { lo[i] = line(9.999280735e-01f, k(6.932609855e-01f), f[i]); });
    unroll<N>([&](auto i) { f[i] = vmulq_f32(f[i], f[i]); });
    unroll<N>([&](auto i) { x[i] = vmulq_f32(vfmaq_f32(lo[i], hi[i], f[i]), two_n[i]); });
  } else {
    float32x4_t f2[N], top[N];
    unroll<N>([&](auto i) { f2[i] = vmulq_f32(f[i], f[i]); });
    unroll<N>([&](auto i) { top[i] = line(9.675541334e-03f, k(1.327647198e-03f), f[i]); });
    unroll<N>([&](auto i) { hi[i] = line(2.402211972e-01f, k(5.550713274e-02f), f[i]); });
    unroll<N>([&](auto i) { hi[i] = vfmaq_f32(hi[i], top[i], f2[i]); });
    unroll<N>([&](auto i) { lo[i] = line(1.000000072e+00f, k(6.931469671e-01f), f[i]); });
    unroll<N>([&](auto i) { x[i] = vmulq_f32(vfmaq_f32(lo[i], hi[i], f2[i]), two_n[i]); });
  }
}

struct Four { float32x4_t row[4]; };
[[gnu::always_inline]] inline Four transposed(const Four& x) {
  const float64x2_t a = vreinterpretq_f64_f32(vzip1q_f32(x.row[0], x.row[1])),
                    b = vreinterpretq_f64_f32(vzip2q_f32(x.row[0], x.row[1]));
  const float64x2_t c = vreinterpretq_f64_f32(vzip1q_f32(x.row[2], x.row[3])),
                    d = vreinterpretq_f64_f32(vzip2q_f32(x.row[2], x.row[3]));
  return {{vreinterpretq_f32_f64(vzip1q_f64(a, c)), vreinterpretq_f32_f64(vzip2q_f64(a, c)),
           vreinterpretq_f32_f64(vzip1q_f64(b, d)), vreinterpretq_f32_f64(vzip2q_f64(b, d))}};
}

[[gnu::always_inline]] inline float32x4_t load4(const float* x) { return vld1q_f32(x); }
[[gnu::always_inline]] inline float32x4_t load4(const F16* x) {
  return vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(x)));
}
[[gnu::always_inline]] inline float32x4_t load4(const Bf16* x) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&x->bits), 16));
}
[[gnu::always_inline]] inline void store4(float* to, float32x4_t x) { vst1q_f32(to, x); }
[[gnu::always_inline]] inline void store4(F16* to, float32x4_t x) {
  vst1_f16(reinterpret_cast<float16_t*>(to), vcvt_f16_f32(x));
}
// Rounds to nearest even and keeps NaN.
[[gnu::always_inline]] inline void store4(Bf16* to, float32x4_t x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7FFF)), odd);
  const uint32x4_t kept = vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(u, vdupq_n_u32(0x400000)));
  vst1_u16(&to->bits, vshrn_n_u32(kept, 16));
}

// Converts rows to and from f32, for any n.
template <class T>
void widen(const void* from, int64_t n, float* to) {
  const T* x = static_cast<const T*>(from);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(to + i, load4(x + i));
  for (; i < n; ++i) to[i] = float(x[i]);
}
template <class T>
void narrow(const float* from, int64_t n, void* to) {
  T* x = static_cast<T*>(to);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) store4(x + i, vld1q_f32(from + i));
  for (; i < n; ++i) x[i] = T(from[i]);
}

// A number times 0 is 0, but for NaN and infinities.
template <class T>
bool finite(const void* const* rows, int n, int dim) {
  float32x4_t sums[4];
  const float32x4_t zero = vdupq_n_f32(0);
  unroll<4>([&](auto i) { sums[i] = zero; });
  for (int r = 0; r < n; ++r) {
    const T* x = static_cast<const T*>(rows[r]);
    int d = 0;
    for (; d + 16 <= dim; d += 16)
      unroll<4>([&](auto i) { sums[i] = vfmaq_f32(sums[i], load4(x + d + 4 * i), zero); });
    for (; d < dim; d += 4) sums[0] = vfmaq_f32(sums[0], load4(x + d), zero);
  }
  return vaddvq_f32(vaddq_f32(vaddq_f32(sums[0], sums[1]), vaddq_f32(sums[2], sums[3]))) == 0.f;
}

// Uses four sums of four, which the scheduler can overlap.
template <class T>
float dot(const void* a, const void* b, int n) {
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  float32x4_t sums[4];
  unroll<4>([&](auto i) { sums[i] = vdupq_n_f32(0); });
  int d = 0;
  for (; d + 16 <= n; d += 16)
    unroll<4>([&](auto i) { sums[i] = vfmaq_f32(sums[i], load4(x + d + 4 * i), load4(y + d + 4 * i)); });
  float sum = vaddvq_f32(vaddq_f32(vaddq_f32(sums[0], sums[1]), vaddq_f32(sums[2], sums[3])));
  for (; d < n; ++d) sum += float(x[d]) * float(y[d]);
  return sum;
}

struct OfFour {
  using F = float32x4_t;
  static constexpr int kLanes = 4;
  static F zero() { return vdupq_n_f32(0); }
  template <class T>
  static F load(const T* x) { return load4(x); }
  static void store(float* to, F x) { vst1q_f32(to, x); }
  static F broadcast(const float* x) { return vld1q_dup_f32(x); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static void sums(const F (&x)[4], float* to) {
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
  }
};

inline float row_weights(float* s, int n, float ref) {
  const bool large = any_large_logit(&ref, 1);
  const Exp2Row row[1] = {Exp2Row(vdupq_n_f32(large ? 0.f : ref))};
  float32x4_t sum = vdupq_n_f32(0);
  for (int j = 0; j < n; j += 16) {
    float32x4_t x[4];
    unroll<4>([&](auto i) { x[i] = vld1q_f32(s + j + 4 * i); });
    if (large) unroll<4>([&](auto i) { x[i] = vsubq_f32(x[i], vdupq_n_f32(ref)); });
    exp2<5>(x, row);
    unroll<4>([&](auto i) { vst1q_f32(s + j + 4 * i, x[i]), sum = vaddq_f32(sum, x[i]); });
  }
  return vaddvq_f32(sum);
}

// Stands in for rows beyond the end of a panel or tile, for any stored dtype.
inline constexpr int kMaxDim = 256;
alignas(64) inline constexpr float kZeros[kMaxDim] = {};

}  // namespace
}  // namespace attune::neon
