// SPDX-License-Identifier: Apache-2.0
// x86 AVX-512 with VDPBF16PS: bf16 operands, f32 accumulation, P (and dS) rounded to bf16. A lane of the instruction
// adds the products of a pair, so operands are those of the f32 kernels with pairs for elements: of dims in the first
// product, of keys in the second. s and o are the same.
//   q [dim / 2][rows][2]   k [n / 8][dim / 2][8][2]   v [dim / 8][capacity / 2][8][2]   p [key / 2][rows][2]
#include "machine/cpu/avx512.h"

namespace attune {
namespace {

using x86::kVectors;
using V = Avx512;
using F = Avx512::F;
using P = x86::Panels<Avx512>;
constexpr int kLanes = V::kLanes, kTileN = V::kTileN, R = x86::kRows<V>;

struct Pairs {
  static constexpr int kBytes = 4, kDepth = 2;
  [[gnu::always_inline]] static inline F load(const char* x) { return V::load(reinterpret_cast<const float*>(x)); }
  [[gnu::always_inline]] static inline F broadcast(const char* x) {
    return V::broadcast(reinterpret_cast<const float*>(x));
  }
  [[gnu::always_inline]] static inline void multiply(F& acc, F a, F b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  }
};

// Loads pairs from eight rows (one per lane) of 16 bf16, one vector per pair of dims. A pair moves as one 32-bit word.
[[gnu::always_inline]] inline void load_pairs(const void* const* rows, int first, int n, int d, __m256 (&x)[8]) {
  for (int a = 0; a < 8; ++a)
    x[a] = _mm256_loadu_ps(reinterpret_cast<const float*>(x86::row_or_zeros<Bf16>(rows, first + a, n) + d));
  x86::transpose8(x);
}
// The same for the last 8 of a dim that is not a multiple of 16: four pairs, the rest is unused.
[[gnu::always_inline]] inline void load_half_pairs(const void* const* rows, int first, int n, int d, __m256 (&x)[8]) {
  for (int a = 0; a < 8; ++a)
    x[a] = _mm256_castps128_ps256(
        _mm_loadu_ps(reinterpret_cast<const float*>(x86::row_or_zeros<Bf16>(rows, first + a, n) + d)));
  x86::transpose8(x);
}

// Packs eight rows to [dim / 2][8] words, `step` words from one pair of dims to the next.
void pack_rows(const void* const* rows, int first, int n, int dim, float* to, int step) {
  for (int d = 0; d < dim; d += 16) {
    const bool half = d + 8 == dim;
    __m256 x[8];
    half ? load_half_pairs(rows, first, n, d, x) : load_pairs(rows, first, n, d, x);
    for (int a = 0; a < (half ? 4 : 8); ++a, to += step) _mm256_storeu_ps(to, x[a]);
  }
}

// The scale is not folded in, since q would be rounded a second time.
void pack_q(const void* const* rows, int n, int dim, float, void* to) {
  for (int r = 0; r < R; r += 8) pack_rows(rows, r, n, dim, static_cast<float*>(to) + r, R);
}
void pack_k(const void* const* rows, int n, int dim, void* to) {
  for (int j = 0; j < n; j += 8) pack_rows(rows, j, n, dim, static_cast<float*>(to) + int64_t(j) * dim / 2, kTileN);
}
void pack_v(const void* const* rows, int n, int dim, void* to, int capacity) {
  for (int j = 0; j < (n + 7) / 8 * 8; j += 2) {
    const auto *x = x86::row_or_zeros<Bf16>(rows, j, n), *y = x86::row_or_zeros<Bf16>(rows, j + 1, n);
    char* v = static_cast<char*>(to) + int64_t(j) * kTileN * 2;
    for (int d = 0; d < dim; d += 8, v += int64_t(capacity) * kTileN * 2) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + d));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(y + d));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(v), _mm_unpacklo_epi16(a, b));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(v) + 1, _mm_unpackhi_epi16(a, b));
    }
  }
}

// Converts two vectors of consecutive keys to one of pairs, rounded to nearest even.
[[gnu::always_inline]] inline __m512i paired(F even, F odd) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh both = _mm512_cvtne2ps_pbh(odd, even);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), reinterpret_cast<const __m512i&>(both));
}

// The sum uses the weights before rounding.
template <bool LargeLogits>
void weights_by(const float* s, int n, float scale, const float* ref, float* sum, void* to) {
  char* p = static_cast<char*>(to);
  F shift[kVectors], total[kVectors];
  for (int c = 0; c < kVectors; ++c)
    shift[c] = V::zero_if_minus_inf(V::load(ref + c * kLanes)), total[c] = V::load(sum + c * kLanes);
  for (int j = 0; j < n; j += 2, s += 2 * R, p += 4 * R)
    for (int c = 0; c < kVectors; ++c) {
      const F even = V::exp2(exponent<LargeLogits>(V::load(s + c * kLanes), V::set1(scale), shift[c]));
      const F odd = V::exp2(exponent<LargeLogits>(V::load(s + R + c * kLanes), V::set1(scale), shift[c]));
      _mm512_storeu_si512(p + c * kLanes * 4, paired(even, odd));
      total[c] = V::add(total[c], V::add(even, odd));
    }
  for (int c = 0; c < kVectors; ++c) V::store(sum + c * kLanes, total[c]);
}
void weights(const float* s, int n, float scale, const float* ref, float* sum, void* p) {
  any_large_logit(ref, R) ? weights_by<true>(s, n, scale, ref, sum, p) : weights_by<false>(s, n, scale, ref, sum, p);
}

float gradients(const float* s, const float* dp, int n, float scale, const float* lse, const float* delta, void* p_to,
                void* ds_to) {
  char *p = static_cast<char*>(p_to), *ds = static_cast<char*>(ds_to);
  F sum = V::set1(0.f);
  for (int j = 0; j < n; j += 2, s += 2 * R, dp += 2 * R, p += 4 * R, ds += 4 * R)
    for (int c = 0; c < R; c += kLanes) {
      F x[2], y[2];
      for (int a = 0; a < 2; ++a) {
        x[a] = V::exp2(_mm512_fmsub_ps(V::load(s + a * R + c), V::set1(scale), V::set1(lse[j + a])));
        y[a] = V::mul(x[a], V::sub(V::load(dp + a * R + c), V::set1(delta[j + a])));
        sum = V::add(sum, y[a]);
      }
      _mm512_storeu_si512(p + c * 4, paired(x[0], x[1]));
      _mm512_storeu_si512(ds + c * 4, paired(y[0], y[1]));
    }
  return x86::sum_of_lanes<V>(sum);
}

// A word of `ds` is a pair of queries of one key; a word of the result is a pair of keys of one query. Sixteen queries
// by eight keys at a time: the words are transposed, then the halves of two adjacent keys' words are exchanged.
void transpose(const void* ds_panel, int n, void* to_panels, int, int64_t panel, int at) {
  const float* ds = static_cast<const float*>(ds_panel);
  for (int j = 0; j < n; j += 16)
    for (int r = 0; r < R; r += 8) {
      const bool half = j + 8 == n;  // n is a multiple of 8
      __m256 x[8];
      for (int a = 0; a < 8; ++a)
        x[a] = half && a >= 4 ? _mm256_setzero_ps() : _mm256_loadu_ps(ds + (j / 2 + a) * R + r);
      x86::transpose8(x);
      for (int a = 0; a < 8; a += 2) {
        const __m256i key = _mm256_castps_si256(x[a]), next = _mm256_castps_si256(x[a + 1]);
        const __m256i even = _mm256_blend_epi16(key, _mm256_slli_epi32(next, 16), 0xAA);
        const __m256i odd = _mm256_blend_epi16(_mm256_srli_epi32(key, 16), next, 0xAA);
        const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
        char* to = static_cast<char*>(to_panels) + (j / R * panel + int64_t(at + r + a) * R + j % R * 2) * 2;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(low, high, 0x20));
        if (!half) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + 1, _mm256_permute2x128_si256(low, high, 0x31));
      }
    }
}

void write_weights(const float* plain, int64_t stride, int n, void* p) {
  for (int j = 0; j < n; j += 8)
    for (int r = 0; r < R; r += 8) {
      __m256 x[8];
      x86::load_square(plain + r * stride + j, stride, x);
      for (int a = 0; a < 8; a += 2) {
        const __m256i pair = _mm256_or_si256(x86::bf16_bits(x[a]), _mm256_slli_epi32(x86::bf16_bits(x[a + 1]), 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<char*>(p) + ((j + a) / 2 * R + r) * 4), pair);
      }
    }
}

}  // namespace

const CpuKernels kAvx512Bf16Kernels[1] = {
    {.isa = "avx512_bf16", .needs = bit(Feature::avx512) | bit(Feature::avx512_bf16), .dtype = DType::bf16, .rows = R,
     .keys = x86::kKeys, .tile = x86::kTile, .dim_step = 8, .operand_bytes = sizeof(Bf16), .scale_in_q = false,
     .pack_q = pack_q, .pack_k = pack_k, .pack_v = pack_v, .scores = P::scores<Pairs>, .hide = P::hide,
     .weights = weights, .rounded_weight = rounded_weight, .rescale = P::rescale,
     .accumulate = P::accumulate<Pairs>, .add_row = P::add_row, .unpack = P::unpack, .gradients = gradients,
     .transpose = transpose, .read_scores = P::read_scores, .write_scores = P::write_scores,
     .write_weights = write_weights, .widen = x86::widen<Bf16>,
     .narrow = x86::narrow<Bf16>, .finite = x86::finite<Bf16>}};

}  // namespace attune
