// SPDX-License-Identifier: Apache-2.0
// x86 AMX: bf16 operands, f32 accumulation, P (and dS) rounded to bf16. TDPBF16PS multiplies 16 rows of 32 by 32 x 16,
// the second operand as pairs of consecutive terms. A 32 x 32 result takes four of the eight tiles, so each loaded
// operand tile is used twice. Rows lie across vectors here, and keys or dims along lanes: the weights of a row are
// stored as the row of an operand, and only k is transposed, once per tile.
//   q [dim / 32][rows][32]   k [n / 32][dim / 32][2][16 pairs of dims][16 keys][2]   s, p [key / 32][rows][32 keys]
//   v [dim / 32][capacity / 32][2][16 pairs of keys][16 dims][2]                         o [dim / 32][rows][32 dims]
#include "machine/cpu/avx512.h"

namespace attune {
namespace {

using x86::minus_inf, x86::row_or_zeros;
using F = __m512;

// The side of a block, two tiles each way: rows of a panel, keys, and the step of dims.
constexpr int kSide = 32;
// s and p of a panel are 48 KB, all of L1; with fewer keys, o is loaded and stored more often.
constexpr int kTile = 256;
constexpr int kRow = 64, kHalf = 16 * kRow, kBlock = 2 * kHalf;  // bytes of a tile's row, a tile, an operand's block

// Eight full tiles. The configuration belongs to the thread, and other code on it may have changed it since. Every loop
// that uses tiles therefore loads it first, some hundred cycles before thousands. It is not released afterwards: tiles
// are not preserved across calls, and other code loads its own configuration too.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kConfig;

// Tiles 0 ... 3 += A B over `steps` of 32 terms.
[[gnu::always_inline]] inline void product(const char* a, const char* b, int steps) {
  for (; steps > 0; --steps, a += kBlock, b += kBlock) {
    _tile_loadd(4, a, kRow);
    _tile_loadd(6, b, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kHalf, kRow);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kHalf, kRow);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}
// A 32 x 32 block of floats, rows of 128 bytes.
[[gnu::always_inline]] inline void store_block(float* to) {
  _tile_stored(0, to, 128);
  _tile_stored(1, to + 16, 128);
  _tile_stored(2, to + 16 * kSide, 128);
  _tile_stored(3, to + 16 * kSide + 16, 128);
}
[[gnu::always_inline]] inline void load_block(const float* from) {
  _tile_loadd(0, from, 128);
  _tile_loadd(1, from + 16, 128);
  _tile_loadd(2, from + 16 * kSide, 128);
  _tile_loadd(3, from + 16 * kSide + 16, 128);
}

// Folds 16 vectors into one: lane i combines the lanes of x[i].
template <class Op>
[[gnu::always_inline]] inline F fold(const F* x, Op op) {
  F quad[4], half[2];
  for (int i = 0; i < 4; ++i) {
    F pair[2];
    for (int a = 0; a < 2; ++a) {
      const F even = x[4 * i + 2 * a], odd = x[4 * i + 2 * a + 1];
      pair[a] = op(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
    }
    quad[i] = op(_mm512_shuffle_ps(pair[0], pair[1], 0x44), _mm512_shuffle_ps(pair[0], pair[1], 0xEE));
  }
  for (int i = 0; i < 2; ++i)
    half[i] = op(_mm512_shuffle_f32x4(quad[2 * i], quad[2 * i + 1], 0x88),
                 _mm512_shuffle_f32x4(quad[2 * i], quad[2 * i + 1], 0xDD));
  return op(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xDD));
}
void store_top(const F* best, float* top) {
  for (int r = 0; r < kSide; r += 16)
    _mm512_storeu_ps(top + r, fold(best + r, [](F a, F b) { return _mm512_max_ps(a, b); }));
}

// 16 x 16 words.
[[gnu::always_inline]] inline void transpose16(F (&x)[16]) {
  F a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int n = 0; n < 2; ++n) {  // b[i + c]: column c of each quarter, rows i ... i + 3
      b[i + 2 * n] = _mm512_shuffle_ps(a[i + n], a[i + n + 2], 0x44);
      b[i + 2 * n + 1] = _mm512_shuffle_ps(a[i + n], a[i + n + 2], 0xEE);
    }
  for (int c = 0; c < 4; ++c) {
    const F even[2] = {_mm512_shuffle_f32x4(b[c], b[c + 4], 0x88), _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0x88)};
    const F odd[2] = {_mm512_shuffle_f32x4(b[c], b[c + 4], 0xDD), _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0xDD)};
    x[c] = _mm512_shuffle_f32x4(even[0], even[1], 0x88);
    x[c + 4] = _mm512_shuffle_f32x4(odd[0], odd[1], 0x88);
    x[c + 8] = _mm512_shuffle_f32x4(even[0], even[1], 0xDD);
    x[c + 12] = _mm512_shuffle_f32x4(odd[0], odd[1], 0xDD);
  }
}

// Up to 32 numbers of a row from dim d on; dims beyond the last are 0 and not read.
[[gnu::always_inline]] inline __m512i load_dims(const Bf16* row, int d, int dim) {
  const __mmask32 there = dim - d >= kSide ? ~__mmask32(0) : (__mmask32(1) << (dim - d)) - 1;
  return _mm512_maskz_loadu_epi16(there, row + d);
}

// Interleaves two rows of 32 into two vectors of 16 pairs.
struct Pairs { __m512i first, second; };
[[gnu::always_inline]] inline Pairs paired(__m512i even, __m512i odd) {
  const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
  return {_mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high),
          _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high)};
}

// The scale is not folded in, since q would be rounded a second time.
void pack_q(const void* const* rows, int n, int dim, float, void* to) {
  char* q = static_cast<char*>(to);
  for (int d = 0; d < dim; d += kSide)
    for (int r = 0; r < kSide; ++r, q += kRow)
      _mm512_storeu_si512(q, load_dims(row_or_zeros<Bf16>(rows, r, n), d, dim));
}

// A pair of dims moves as one word.
void pack_k(const void* const* rows, int n, int dim, void* to) {
  char* k = static_cast<char*>(to);
  for (int j = 0; j < n; j += kSide)
    for (int d = 0; d < dim; d += kSide)
      for (int half = 0; half < kSide; half += 16, k += kHalf) {
        F x[16];
        for (int a = 0; a < 16; ++a)
          x[a] = _mm512_castsi512_ps(load_dims(row_or_zeros<Bf16>(rows, j + half + a, n), d, dim));
        transpose16(x);
        for (int a = 0; a < 16; ++a) _mm512_storeu_ps(k + a * kRow, x[a]);
      }
}

void pack_v(const void* const* rows, int n, int dim, void* to, int capacity) {
  for (int j = 0; j < (n + kSide - 1) / kSide * kSide; j += 2) {
    const auto *x = row_or_zeros<Bf16>(rows, j, n), *y = row_or_zeros<Bf16>(rows, j + 1, n);
    char* v = static_cast<char*>(to) + j / kSide * kBlock + j % kSide / 2 * kRow;
    for (int d = 0; d < dim; d += kSide, v += int64_t(capacity) * kRow) {
      const Pairs both = paired(load_dims(x, d, dim), load_dims(y, d, dim));
      _mm512_storeu_si512(v, both.first);
      _mm512_storeu_si512(v + kHalf, both.second);
    }
  }
}

[[gnu::always_inline]] inline void raise(F* best, const float* s) {
  for (int r = 0; r < kSide; ++r, s += kSide)
    best[r] = _mm512_max_ps(best[r], _mm512_max_ps(_mm512_loadu_ps(s), _mm512_loadu_ps(s + 16)));
}

// The maxima of a block are taken while the next one is multiplied; taken at once, they would wait for its tiles.
void scores(const void* q, const void* k_tile, int n, int dim, float* s, float* top) {
  const char* k = static_cast<const char*>(k_tile);
  const int steps = dim / kSide;
  F best[kSide];
  for (F& x : best) x = _mm512_set1_ps(minus_inf());
  _tile_loadconfig(&kConfig);
  for (int j = 0; j < n; j += kSide, k += int64_t(steps) * kBlock, s += kSide * kSide) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    product(static_cast<const char*>(q), k, steps);
    if (j) raise(best, s - kSide * kSide);
    store_block(s);
  }
  raise(best, s - kSide * kSide);
  store_top(best, top);
}

void accumulate(const void* p, const void* v_tile, int capacity, int first, int n, int dim, float* o) {
  const char* v = static_cast<const char*>(v_tile) + first / kSide * kBlock;
  _tile_loadconfig(&kConfig);
  for (int d = 0; d < dim; d += kSide, v += int64_t(capacity) * kRow, o += kSide * kSide) {
    load_block(o);
    product(static_cast<const char*>(p), v, n / kSide);
    store_block(o);
  }
}

void hide(float* s, int n, const int* first, const int* last, float* top) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  F best[kSide];
  for (int r = 0; r < kSide; ++r) {
    best[r] = _mm512_set1_ps(minus_inf());
    for (int j = 0; j < n; j += 16) {
      float* x = s + (j / kSide * kSide + r) * kSide + j % kSide;
      const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(j));
      const __mmask16 from = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(first[r]));
      const __mmask16 inside = _mm512_mask_cmplt_epi32_mask(from, at, _mm512_set1_epi32(last[r]));
      const F y = _mm512_mask_loadu_ps(_mm512_set1_ps(minus_inf()), inside, x);
      _mm512_storeu_ps(x, y);
      best[r] = _mm512_max_ps(best[r], y);
    }
  }
  store_top(best, top);
}

// Relative error 7.5e-5, well below the 2e-3 of rounding P to bf16: a minimax polynomial on [0, 1). VREDUCE returns the
// fraction above the next lower integer, and 0 for infinity; VSCALEF multiplies by two to that integer, 0 at -inf.
[[gnu::always_inline]] inline F exp2(F x) {
  const F f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  F y = _mm512_fmadd_ps(_mm512_set1_ps(7.802452266e-02f), f, _mm512_set1_ps(2.260671554e-01f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.958335406e-01f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.999252185e-01f));
  return _mm512_scalef_ps(y, x);
}

// Stores 32 numbers of a row, rounded to nearest even.
[[gnu::always_inline]] inline void store_operand(char* to, F low, F high) {
  const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
  _mm512_storeu_si512(to, reinterpret_cast<const __m512i&>(both));
}

// The sum uses the weights before rounding.
template <bool LargeLogits>
void weights_by(const float* s, int n, float scale, const float* ref, float* sum, void* to) {
  char* p = static_cast<char*>(to);
  const F scales = _mm512_set1_ps(scale);
  alignas(64) float shift[kSide];
  for (int r = 0; r < kSide; r += 16) _mm512_store_ps(shift + r, Avx512::zero_if_minus_inf(_mm512_loadu_ps(ref + r)));
  F total[kSide];
  for (F& x : total) x = _mm512_setzero_ps();
  for (int j = 0; j < n; j += kSide)
    for (int r = 0; r < kSide; ++r, s += kSide, p += kRow) {
      const F low = exp2(exponent<LargeLogits>(_mm512_loadu_ps(s), scales, _mm512_set1_ps(shift[r])));
      const F high = exp2(exponent<LargeLogits>(_mm512_loadu_ps(s + 16), scales, _mm512_set1_ps(shift[r])));
      store_operand(p, low, high);
      total[r] = _mm512_add_ps(total[r], _mm512_add_ps(low, high));
    }
  for (int r = 0; r < kSide; r += 16)
    _mm512_storeu_ps(sum + r, _mm512_add_ps(_mm512_loadu_ps(sum + r),
                                            fold(total + r, [](F a, F b) { return _mm512_add_ps(a, b); })));
}
void weights(const float* s, int n, float scale, const float* ref, float* sum, void* p) {
  any_large_logit(ref, kSide) ? weights_by<true>(s, n, scale, ref, sum, p)
                              : weights_by<false>(s, n, scale, ref, sum, p);
}

void rescale(float* o, int dim, const float* factor) {
  for (int d = 0; d < dim; d += kSide)
    for (int r = 0; r < kSide; ++r, o += kSide) {
      const F f = _mm512_set1_ps(factor[r]);
      _mm512_storeu_ps(o, _mm512_mul_ps(_mm512_loadu_ps(o), f));
      _mm512_storeu_ps(o + 16, _mm512_mul_ps(_mm512_loadu_ps(o + 16), f));
    }
}

void add_row(const float* x, int dim, int r, float* o) {
  for (int d = 0; d < dim; ++d) o[(d / kSide * kSide + r) * kSide + d % kSide] += x[d];
}

void unpack(const float* o, int dim, const float* factor, int n, float* to, int64_t stride) {
  for (int d = 0; d < dim; d += 16)
    for (int r = 0; r < n; ++r) {
      const __mmask16 there = dim - d >= 16 ? 0xFFFF : (1 << (dim - d)) - 1;
      const F x = _mm512_loadu_ps(o + (d / kSide * kSide + r) * kSide + d % kSide);
      _mm512_mask_storeu_ps(to + r * stride + d, there, _mm512_mul_ps(x, _mm512_set1_ps(factor[r])));
    }
}

template <F (*kExponential)(F)>
float gradients(const float* s, const float* dp, int n, float scale, const float* lse, const float* delta, void* p_to,
                void* ds_to) {
  char *p = static_cast<char*>(p_to), *ds = static_cast<char*>(ds_to);
  F sum = _mm512_setzero_ps();
  for (int j = 0; j < n; j += kSide)
    for (int r = 0; r < kSide; ++r, s += kSide, dp += kSide, p += kRow, ds += kRow) {
      F x[2], y[2];
      for (int a = 0; a < 2; ++a) {
        const F shift = _mm512_loadu_ps(lse + j + 16 * a);
        x[a] = kExponential(_mm512_fmsub_ps(_mm512_loadu_ps(s + 16 * a), _mm512_set1_ps(scale), shift));
        y[a] = _mm512_mul_ps(x[a], _mm512_sub_ps(_mm512_loadu_ps(dp + 16 * a), _mm512_loadu_ps(delta + j + 16 * a)));
        sum = _mm512_add_ps(sum, y[a]);
      }
      store_operand(p, x[0], x[1]);
      store_operand(ds, y[0], y[1]);
    }
  return _mm512_reduce_add_ps(sum);
}

// 32 keys by 32 queries at a time: pairs of keys become words, and the words are transposed.
void transpose(const void* ds_panel, int n, void* to_panels, int, int64_t panel, int at) {
  const char* ds = static_cast<const char*>(ds_panel);
  for (int j = 0; j < n; j += kSide, ds += kBlock) {
    F half[2][16];
    for (int a = 0; a < 16; ++a) {
      const Pairs both = paired(_mm512_loadu_si512(ds + 2 * a * kRow), _mm512_loadu_si512(ds + (2 * a + 1) * kRow));
      half[0][a] = _mm512_castsi512_ps(both.first), half[1][a] = _mm512_castsi512_ps(both.second);
    }
    char* to = static_cast<char*>(to_panels) + j / kSide * panel * 2 + int64_t(at) * kRow;
    for (auto& x : half) {
      transpose16(x);
      for (int a = 0; a < 16; ++a, to += kRow) _mm512_storeu_ps(to, x[a]);
    }
  }
}

void read_scores(const float* s, int n, float* plain, int64_t stride) {
  for (int j = 0; j < n; j += kSide)
    for (int r = 0; r < kSide; ++r, s += kSide) {
      _mm512_storeu_ps(plain + r * stride + j, _mm512_loadu_ps(s));
      _mm512_storeu_ps(plain + r * stride + j + 16, _mm512_loadu_ps(s + 16));
    }
}
void write_scores(const float* plain, int64_t stride, int n, float* s) {
  for (int j = 0; j < n; j += kSide)
    for (int r = 0; r < kSide; ++r, s += kSide) {
      _mm512_storeu_ps(s, _mm512_loadu_ps(plain + r * stride + j));
      _mm512_storeu_ps(s + 16, _mm512_loadu_ps(plain + r * stride + j + 16));
    }
}
void write_weights(const float* plain, int64_t stride, int n, void* to) {
  char* p = static_cast<char*>(to);
  for (int j = 0; j < n; j += kSide)
    for (int r = 0; r < kSide; ++r, p += kRow)
      store_operand(p, _mm512_loadu_ps(plain + r * stride + j), _mm512_loadu_ps(plain + r * stride + j + 16));
}

}  // namespace

const CpuKernels kAmxKernels[1] = {
    {.isa = "amx_bf16", .needs = bit(Feature::avx512) | bit(Feature::amx_bf16), .dtype = DType::bf16, .rows = kSide,
     .keys = kSide, .tile = kTile, .dim_step = kSide, .operand_bytes = sizeof(Bf16), .scale_in_q = false,
     .pack_q = pack_q, .pack_k = pack_k, .pack_v = pack_v, .scores = scores, .hide = hide, .weights = weights,
     .rounded_weight = rounded_weight, .rescale = rescale, .accumulate = accumulate, .add_row = add_row,
     .unpack = unpack, .gradients = gradients<exp2>, .summed_gradients = gradients<Avx512::exp2>,
     .transpose = transpose, .read_scores = read_scores, .write_scores = write_scores,
     .write_weights = write_weights, .widen = x86::widen<Bf16>, .narrow = x86::narrow<Bf16>,
     .finite = x86::finite<Bf16>}};

}  // namespace attune
