// SPDX-License-Identifier: Apache-2.0
// Code shared by the x86 kernels: everything but the width of a vector and its exponential. An instruction set is a
// type V with
//   F, kLanes, kTileN                                       a vector of floats, its lanes, and the tile's width
//   load, store, broadcast, set1, add, sub, mul, max        the obvious
//   fma(a, b, c)                                            a b + c
//   between(first, j, last, x)                              x where first <= j < last, else -inf
//   zero_if_minus_inf(x), exp2(x)
// Rows lie along lanes everywhere, three vectors of them, so one register tile of 3 x kTileN accumulators serves both
// products: p is stored as an operand of the second, and nothing is transposed after packing.
//   q [dim][rows]   k [n / kTileN][dim][kTileN]   v [dim / kTileN][capacity][kTileN]   s, p [key][rows]   o [dim][rows]
// Everything has internal linkage, and no function of another header is called: code compiled for wide vectors and
// shared by the linker would crash on a CPU without them.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "machine/cpu/row_loops.h"
#include "machine/cpu/kernels.h"

namespace attune::x86 {
namespace {

constexpr int kVectors = 3;  // a panel's rows, in vectors
constexpr int kKeys = 8;     // both widths divide it, and 8 x 8 transposes fit
constexpr int kTile = 128;   // s and p of a panel stay in L1: 24 KB each at 48 rows
constexpr int kMaxDim = 256;
alignas(64) constexpr float kZeros[kMaxDim] = {};  // rows beyond the end of a panel or tile, for any stored dtype

template <class V>
constexpr int kRows = kVectors * V::kLanes;

template <class V>
float sum_of_lanes(typename V::F x) {
  float lane[V::kLanes], sum = 0.f;
  V::store(lane, x);
  for (const float y : lane) sum += y;
  return sum;
}

// Loads and stores eight numbers of any stored dtype; bf16 rounds to nearest even and keeps NaN.
inline __m256 load8(const float* x) { return _mm256_loadu_ps(x); }
inline __m256 load8(const F16* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }
inline __m256 load8(const Bf16* x) {
  const __m256i f32 = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(f32, 16));
}
inline __m256i bf16_bits(__m256 x) {  // in the low half of each lane
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store8(float* to, __m256 x) { _mm256_storeu_ps(to, x); }
inline void store8(F16* to, __m256 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store8(Bf16* to, __m256 x) {
  const __m256i u = bf16_bits(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}

// Converts rows to and from f32, for any n; the last few go through a separate whole vector.
template <class T>
void widen(const void* from, int64_t n, float* to) {
  const char* x = static_cast<const char*>(from);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, load8(reinterpret_cast<const T*>(x) + i));
  if (i == n) return;
  alignas(32) char last[8 * sizeof(float)] = {};
  alignas(32) float f32[8];
  std::memcpy(last, x + i * int64_t(sizeof(T)), size_t(n - i) * sizeof(T));
  _mm256_store_ps(f32, load8(reinterpret_cast<const T*>(last)));
  std::memcpy(to + i, f32, size_t(n - i) * sizeof(float));
}
template <class T>
void narrow(const float* from, int64_t n, void* to) {
  char* x = static_cast<char*>(to);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(reinterpret_cast<T*>(x) + i, _mm256_loadu_ps(from + i));
  if (i == n) return;
  alignas(32) float last[8] = {};
  alignas(32) char thin[8 * sizeof(float)];
  std::memcpy(last, from + i, size_t(n - i) * sizeof(float));
  store8(reinterpret_cast<T*>(thin), _mm256_load_ps(last));
  std::memcpy(x + i * int64_t(sizeof(T)), thin, size_t(n - i) * sizeof(T));
}

// A number times 0 is 0, but for NaN and infinities. Four sums, so that the loads are the limit.
template <class T>
bool finite(const void* const* rows, int n, int dim) {
  __m256 sum[4] = {};
  for (int r = 0; r < n; ++r) {
    const T* x = static_cast<const T*>(rows[r]);
    int d = 0;
    for (; d + 32 <= dim; d += 32)
      for (int a = 0; a < 4; ++a) sum[a] = _mm256_fmadd_ps(load8(x + d + 8 * a), _mm256_setzero_ps(), sum[a]);
    for (; d < dim; d += 8) sum[0] = _mm256_fmadd_ps(load8(x + d), _mm256_setzero_ps(), sum[0]);
  }
  const __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
  return _mm256_movemask_ps(_mm256_cmp_ps(all, all, _CMP_UNORD_Q)) == 0;
}

[[gnu::always_inline]] inline void transpose8(__m256 (&x)[8]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int n = 0; n < 2; ++n) {
      b[i + 2 * n] = _mm256_shuffle_ps(a[i + n], a[i + n + 2], 0x44);
      b[i + 2 * n + 1] = _mm256_shuffle_ps(a[i + n], a[i + n + 2], 0xEE);
    }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

template <class T>
const T* row_or_zeros(const void* const* rows, int r, int n) {
  return r < n ? static_cast<const T*>(rows[r]) : reinterpret_cast<const T*>(kZeros);
}
// Dims d ... d + 7 of eight rows, one vector per dim.
template <class T>
[[gnu::always_inline]] inline void load_block(const void* const* rows, int first, int n, int d, __m256 (&x)[8]) {
  for (int a = 0; a < 8; ++a) x[a] = load8(row_or_zeros<T>(rows, first + a, n) + d);
  transpose8(x);
}
// Eight rows of 8 floats, `stride` apart.
[[gnu::always_inline]] inline void load_square(const float* from, int64_t stride, __m256 (&x)[8]) {
  for (int a = 0; a < 8; ++a) x[a] = _mm256_loadu_ps(from + a * stride);
  transpose8(x);
}
[[gnu::always_inline]] inline void store_square(float* to, int64_t stride, const __m256 (&x)[8]) {
  for (int a = 0; a < 8; ++a) _mm256_storeu_ps(to + a * stride, x[a]);
}

struct Eight {
  using F = __m256;
  static constexpr int kLanes = 8;
  static F zero() { return _mm256_setzero_ps(); }
  template <class T>
  static F load(const T* x) { return load8(x); }
  static void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static F broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static void sums(const F (&x)[4], float* to) {
    const F all = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }
};

inline float minus_inf() { return -__builtin_inff(); }

// The part that does not depend on how operands are stored: s and o are always floats.
template <class V>
struct Panels {
  using F = typename V::F;
  static constexpr int kLanes = V::kLanes, kTileN = V::kTileN, R = kRows<V>;

  // to (+)= A B over `steps`: a register tile of kVectors x kTileN, A [steps][rows], B [steps][kTileN].
  template <class Operand>
  [[gnu::always_inline]] static inline void product(const char* a, const char* b, int steps,
                                                    F (&acc)[kTileN][kVectors]) {
    for (int step = 0; step < steps; ++step, a += R * Operand::kBytes, b += kTileN * Operand::kBytes) {
      F x[kVectors];
      for (int c = 0; c < kVectors; ++c) x[c] = Operand::load(a + c * kLanes * Operand::kBytes);
#pragma GCC unroll 8
      for (int n = 0; n < kTileN; ++n) {
        const F y = Operand::broadcast(b + n * Operand::kBytes);
        for (int c = 0; c < kVectors; ++c) Operand::multiply(acc[n][c], x[c], y);
      }
    }
  }

  template <class Operand>
  static void scores(const void* q, const void* k_tile, int n, int dim, float* s, float* top) {
    const char* k = static_cast<const char*>(k_tile);
    const int steps = dim / Operand::kDepth;
    F best[kVectors];
    for (F& x : best) x = V::set1(minus_inf());
    for (int j = 0; j < n; j += kTileN, s += kTileN * R, k += int64_t(steps) * kTileN * Operand::kBytes) {
      F acc[kTileN][kVectors];
      for (auto& row : acc)
        for (F& x : row) x = V::set1(0.f);
      product<Operand>(static_cast<const char*>(q), k, steps, acc);
      for (int a = 0; a < kTileN; ++a)
        for (int c = 0; c < kVectors; ++c) {
          V::store(s + a * R + c * kLanes, acc[a][c]);
          best[c] = V::max(best[c], acc[a][c]);
        }
    }
    for (int c = 0; c < kVectors; ++c) V::store(top + c * kLanes, best[c]);
  }

  template <class Operand>
  static void accumulate(const void* p, const void* v_tile, int capacity, int first, int n, int dim, float* o) {
    const int64_t key = kTileN * Operand::kBytes / Operand::kDepth;  // bytes of kTileN dims of one key
    const char* v = static_cast<const char*>(v_tile) + first * key;
    for (int d = 0; d < dim; d += kTileN, o += kTileN * R, v += capacity * key) {
      F acc[kTileN][kVectors];
      for (int a = 0; a < kTileN; ++a)
        for (int c = 0; c < kVectors; ++c) acc[a][c] = V::load(o + a * R + c * kLanes);
      product<Operand>(static_cast<const char*>(p), v, n / Operand::kDepth, acc);
      for (int a = 0; a < kTileN; ++a)
        for (int c = 0; c < kVectors; ++c) V::store(o + a * R + c * kLanes, acc[a][c]);
    }
  }

  static void hide(float* s, int n, const int* first, const int* last, float* top) {
    for (int c = 0; c < R; c += kLanes) {
      F best = V::set1(minus_inf());
      for (int j = 0; j < n; ++j) {
        const F x = V::between(first + c, j, last + c, V::load(s + j * R + c));
        V::store(s + j * R + c, x);
        best = V::max(best, x);
      }
      V::store(top + c, best);
    }
  }

  static void rescale(float* o, int dim, const float* factor) {
    for (int d = 0; d < dim; ++d, o += R)
      for (int c = 0; c < R; c += kLanes) V::store(o + c, V::mul(V::load(o + c), V::load(factor + c)));
  }

  static void add_row(const float* x, int dim, int r, float* o) {
    for (int d = 0; d < dim; ++d) o[d * R + r] += x[d];
  }

  static void unpack(const float* o, int dim, const float* factor, int n, float* to, int64_t stride) {
    for (int r = 0; r < n; r += 8)
      for (int d = 0; d < dim; d += 8) {
        __m256 x[8];
        for (int a = 0; a < 8; ++a)
          x[a] = _mm256_mul_ps(_mm256_loadu_ps(o + (d + a) * R + r), _mm256_loadu_ps(factor + r));
        transpose8(x);
        for (int a = 0; a < 8 && r + a < n; ++a) _mm256_storeu_ps(to + (r + a) * stride + d, x[a]);
      }
  }

  static void read_scores(const float* s, int n, float* plain, int64_t stride) {
    for (int j = 0; j < n; j += 8)
      for (int r = 0; r < R; r += 8) {
        __m256 x[8];
        load_square(s + j * R + r, R, x);
        store_square(plain + r * stride + j, stride, x);
      }
  }
  static void write_scores(const float* plain, int64_t stride, int n, float* s) {
    for (int j = 0; j < n; j += 8)
      for (int r = 0; r < R; r += 8) {
        __m256 x[8];
        load_square(plain + r * stride + j, stride, x);
        store_square(s + j * R + r, R, x);
      }
  }
};

// Operands in f32 for every stored dtype. q includes the scale, so the argument `scale` is unused.
template <class V>
struct Float32 {
  using F = typename V::F;
  using P = Panels<V>;
  static constexpr int kLanes = V::kLanes, kTileN = V::kTileN, R = kRows<V>;

  static constexpr int kBytes = sizeof(float), kDepth = 1;  // per step: bytes of a row, terms of its dot product
  [[gnu::always_inline]] static inline F load(const char* x) { return V::load(reinterpret_cast<const float*>(x)); }
  [[gnu::always_inline]] static inline F broadcast(const char* x) {
    return V::broadcast(reinterpret_cast<const float*>(x));
  }
  [[gnu::always_inline]] static inline void multiply(F& acc, F a, F b) { acc = V::fma(a, b, acc); }

  template <class T>
  static void pack_q(const void* const* rows, int n, int dim, float scale, void* to) {
    for (int r = 0; r < R; r += 8)
      for (int d = 0; d < dim; d += 8) {
        __m256 x[8];
        load_block<T>(rows, r, n, d, x);
        for (__m256& y : x) y = _mm256_mul_ps(y, _mm256_set1_ps(scale));
        store_square(static_cast<float*>(to) + d * R + r, R, x);
      }
  }
  template <class T>
  static void pack_k(const void* const* rows, int n, int dim, void* to) {
    for (int j = 0; j < n; j += 8)
      for (int d = 0; d < dim; d += 8) {
        __m256 x[8];
        load_block<T>(rows, j, n, d, x);
        float* k = static_cast<float*>(to) + int64_t(j) * dim + d * kTileN;
        for (int a = 0; a < 8; ++a, k += kTileN) store_f32(k, int64_t(kTileN) * dim, x[a]);
      }
  }
  template <class T>
  static void pack_v(const void* const* rows, int n, int dim, void* to, int capacity) {
    // A tile's groups of dims lie 4 KB apart, so stores to all of them would fall into one L1 set (two to three times
    // slower at 128 dims): process a few groups at a time.
    constexpr int kDims = 64;
    for (int from = 0; from < dim; from += kDims)
      for (int j = 0; j < (n + 7) / 8 * 8; ++j) {
        const T* x = row_or_zeros<T>(rows, j, n);
        for (int d = from; d < dim && d < from + kDims; d += 8)
          store_f32(static_cast<float*>(to) + int64_t(d) * capacity + j * kTileN, int64_t(kTileN) * capacity,
                    load8(x + d));
      }
  }

  static void weights(const float* s, int n, float, const float* ref, float* sum, void* to) {
    float* p = static_cast<float*>(to);
    F shift[kVectors], total[kVectors];
    for (int c = 0; c < kVectors; ++c)
      shift[c] = V::zero_if_minus_inf(V::load(ref + c * kLanes)), total[c] = V::load(sum + c * kLanes);
    for (int j = 0; j < n; ++j, s += R, p += R)
      for (int c = 0; c < kVectors; ++c) {
        const F x = V::exp2(V::sub(V::load(s + c * kLanes), shift[c]));
        V::store(p + c * kLanes, x);
        total[c] = V::add(total[c], x);
      }
    for (int c = 0; c < kVectors; ++c) V::store(sum + c * kLanes, total[c]);
  }

  static float row_weights(float* s, int n, float ref) {
    F sum = V::set1(0.f);
    for (int j = 0; j < n; j += kLanes) {
      const F x = V::exp2(V::sub(V::load(s + j), V::set1(ref)));
      V::store(s + j, x);
      sum = V::add(sum, x);
    }
    return sum_of_lanes<V>(sum);
  }

  static float gradients(const float* s, const float* dp, int n, float, const float* lse, const float* delta,
                         void* p_to, void* ds_to) {
    float *p = static_cast<float*>(p_to), *ds = static_cast<float*>(ds_to);
    F sum = V::set1(0.f);
    for (int j = 0; j < n; ++j, s += R, dp += R, p += R, ds += R)
      for (int c = 0; c < R; c += kLanes) {
        const F x = V::exp2(V::sub(V::load(s + c), V::set1(lse[j])));
        V::store(p + c, x);
        const F y = V::mul(x, V::sub(V::load(dp + c), V::set1(delta[j])));
        V::store(ds + c, y);
        sum = V::add(sum, y);
      }
    return sum_of_lanes<V>(sum);
  }

  // Eight queries by eight keys at a time; 8 divides the rows, so a block never straddles two panels.
  static void transpose(const void* ds, int n, void* to, int, int64_t panel, int at) {
    for (int j = 0; j < n; j += 8)
      for (int r = 0; r < R; r += 8) {
        __m256 x[8];
        load_square(static_cast<const float*>(ds) + j * R + r, R, x);
        store_square(static_cast<float*>(to) + j / R * panel + int64_t(at + r) * R + j % R, R, x);
      }
  }

  static void write_weights(const float* plain, int64_t stride, int n, void* p) {
    P::write_scores(plain, stride, n, static_cast<float*>(p));
  }

  template <class T>
  static constexpr CpuKernels kernels(const char* isa, Feature needs, DType dtype) {
    return {.isa = isa, .needs = bit(needs), .dtype = dtype, .rows = R, .keys = kKeys, .tile = kTile, .dim_step = 8,
            .operand_bytes = sizeof(float), .scale_in_q = true,
            .pack_q = pack_q<T>, .pack_k = pack_k<T>, .pack_v = pack_v<T>, .scores = P::template scores<Float32>,
            .hide = P::hide, .weights = weights, .rescale = P::rescale, .accumulate = P::template accumulate<Float32>,
            .add_row = P::add_row, .unpack = P::unpack, .row_scores = row_scores<Eight, T>, .row_weights = row_weights,
            .row_accumulate = row_accumulate<Eight, T>, .gradients = gradients, .transpose = transpose,
            .read_scores = P::read_scores, .write_scores = P::write_scores, .write_weights = write_weights,
            .widen = widen<T>, .narrow = narrow<T>, .finite = finite<T>};
  }

 private:
  // Stores eight floats as one group of kTileN, or as two, `distance` floats apart.
  [[gnu::always_inline]] static inline void store_f32(float* to, int64_t distance, __m256 x) {
    if constexpr (kTileN == 8) {
      _mm256_storeu_ps(to, x);
    } else {
      _mm_storeu_ps(to, _mm256_castps256_ps128(x));
      _mm_storeu_ps(to + distance, _mm256_extractf128_ps(x, 1));
    }
  }
};

}  // namespace
}  // namespace attune::x86
