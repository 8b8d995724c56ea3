// SPDX-License-Identifier: Apache-2.0
// Arm NEON with BFMMLA: bf16 operands, f32 accumulation, P (and dS) rounded to bf16. BFMMLA multiplies 2 x 4 by 4 x 2,
// so everything comes in 2 x 2 blocks: a vector of s is [r0k0 r0k1 r1k0 r1k1]. The softmax is unaffected; row maxima
// and sums fold lane pairs at the end. The tile is 12 x 8 as well: 24 accumulators, 24 products for 10 loads. Rows in
// eights use 8 x 8: 16 accumulators, 16 products for 8 loads; rows in fours use 4 x 16: the same for 10 loads.
#include <algorithm>
#include <bit>
#include <limits>

#include "machine/cpu/kernels.h"
#include "machine/cpu/neon.h"

namespace attune {
namespace {

using namespace neon;

constexpr int kKeys = 8, kTile = 512;

const Bf16* row_or_zeros(const void* const* rows, int r, int n) {
  return r < n ? static_cast<const Bf16*>(rows[r]) : reinterpret_cast<const Bf16*>(kZeros);
}

// Packs 2 Pairs rows from `first` on to [dim / 4][Pairs][2][4]: eight dims of all of them at a time, so that whole
// lines are written.
template <int Pairs>
[[gnu::always_inline]] inline void interleave(const void* const* rows, int first, int n, int dim, Bf16* to) {
  const Bf16* x[2 * Pairs];
  for (int r = 0; r < 2 * Pairs; ++r) x[r] = row_or_zeros(rows, first + r, n);
  for (int d = 0; d < dim; d += 8, to += 16 * Pairs)
    unroll<Pairs>([&](auto c) {
      const uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(&x[2 * c][d].bits)),
                       b = vreinterpretq_u64_u16(vld1q_u16(&x[2 * c + 1][d].bits));
      vst1q_u16(&to[8 * c].bits, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
      vst1q_u16(&to[8 * c + 8 * Pairs].bits, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
    });
}

// [n / 8][dim / 4][8 keys][4]
void pack_k(const void* const* rows, int n, int dim, void* to) {
  for (int j = 0; j < n; j += 8) interleave<4>(rows, j, n, dim, static_cast<Bf16*>(to) + int64_t(j) * dim);
}

// [dim / 8][capacity / 4][8 dims][4 keys]; the four keys have the order 0 2 1 3, in which `joined` leaves P. Transposed
// by zips: ST4 would issue only once in several cycles.
void pack_v(const void* const* rows, int n, int dim, void* to, int capacity) {
  for (int j = 0; j < (n + 7) / 8 * 8; j += 4) {
    const Bf16* x[4];
    for (int r = 0; r < 4; ++r) x[r] = row_or_zeros(rows, j + r, n);
    uint16_t* v = static_cast<uint16_t*>(to) + j * 8;
    for (int d = 0; d < dim; d += 8, v += int64_t(8) * capacity) {
      uint16x8_t y[4];
      unroll<4>([&](auto r) { y[r] = vld1q_u16(&x[r][d].bits); });
      const auto pairs = [](uint16x8_t a, uint16x8_t b) __attribute__((always_inline)) {
        return uint32x4x2_t{{vreinterpretq_u32_u16(vzip1q_u16(a, b)), vreinterpretq_u32_u16(vzip2q_u16(a, b))}};
      };
      const uint32x4x2_t first = pairs(y[0], y[2]), second = pairs(y[1], y[3]);  // of four dims each
      unroll<2>([&](auto half) {
        vst1q_u16(v + 16 * half, vreinterpretq_u16_u32(vzip1q_u32(first.val[half], second.val[half])));
        vst1q_u16(v + 16 * half + 8, vreinterpretq_u16_u32(vzip2q_u32(first.val[half], second.val[half])));
      });
    }
  }
}

// A slab of B of the second product: its start, and its number of pairs of groups of four.
struct Slab {
  const Bf16* b;
  long pairs;
};

// Scores: starts from zero and folds the maximum over b into best[a] while still in registers. Gathered: twelve rows as
// three panels of four, whose operands, or sums, lie at any addresses.
struct ProductConfig { bool scores = false, gathered = false; };

// acc[b][a] (+)= A_a B_b^T over groups of four. A is [groups][Pairs][8]; B is [groups][4][8] in `count` slabs, each
// `offset` bytes after its address; acc is 4 Pairs vectors in memory, which stay in registers from slab to slab. The
// line `ahead` bytes after a line of B is prefetched: slabs are too short for the hardware prefetcher.
//
// Written in assembly because 24 accumulators and ten operands do not fit in 32 registers at once: compilers hoist the
// loads and spill (g++ 12 loses half the speed). With 16 accumulators everything fits.
template <int Pairs, ProductConfig C>
[[gnu::always_inline]] inline void product(const Bf16* a, const Slab* slabs, long count, int64_t offset, int64_t ahead,
                                            float* acc, float* best, const Bf16* a1 = nullptr, const Bf16* a2 = nullptr,
                                            float* acc1 = nullptr, float* acc2 = nullptr) {
#define COLUMN(x, c0, c1, c2, c3)                                                             \
  "bfmmla v" #c0 ".4s, " x ".8h, v24.8h\n bfmmla v" #c1 ".4s, " x ".8h, v25.8h\n"             \
  "bfmmla v" #c2 ".4s, " x ".8h, v26.8h\n bfmmla v" #c3 ".4s, " x ".8h, v27.8h\n"
#define STEP6                                                                                 \
  "prfm pldl1keep, [%[b], %[ahead]]\n"                                                                \
  "ldp q24, q25, [%[b]], #64\n ldp q28, q29, [%[a]], #96\n ldp q26, q27, [%[b], #-32]\n"            \
  COLUMN("v28", 0, 6, 12, 18) "ldp q30, q31, [%[a], #-64]\n" COLUMN("v29", 1, 7, 13, 19)         \
  "ldp q28, q29, [%[a], #-32]\n" COLUMN("v30", 2, 8, 14, 20) COLUMN("v31", 3, 9, 15, 21)         \
  COLUMN("v28", 4, 10, 16, 22) COLUMN("v29", 5, 11, 17, 23)
#define STEP6_GATHERED                                                                        \
  "prfm pldl1keep, [%[b], %[ahead]]\n"                                                        \
  "ldp q24, q25, [%[b]], #64\n ldp q28, q29, [%[a]], #32\n ldp q26, q27, [%[b], #-32]\n"      \
  COLUMN("v28", 0, 6, 12, 18) "ldp q30, q31, [%[a1]], #32\n" COLUMN("v29", 1, 7, 13, 19)       \
  "ldp q28, q29, [%[a2]], #32\n" COLUMN("v30", 2, 8, 14, 20) COLUMN("v31", 3, 9, 15, 21)       \
  COLUMN("v28", 4, 10, 16, 22) COLUMN("v29", 5, 11, 17, 23)
#define STEP4                                                                                 \
  "prfm pldl1keep, [%[b], %[ahead]]\n"                                                                \
  "ldp q24, q25, [%[b]], #64\n ldp q28, q29, [%[a]], #64\n ldp q26, q27, [%[b], #-32]\n"            \
  "ldp q30, q31, [%[a], #-32]\n" COLUMN("v28", 0, 4, 8, 12) COLUMN("v29", 1, 5, 9, 13)           \
  COLUMN("v30", 2, 6, 10, 14) COLUMN("v31", 3, 7, 11, 15)
#define EACH4(op) op(0, 1) op(2, 3) op(4, 5) op(6, 7) op(8, 9) op(10, 11) op(12, 13) op(14, 15)
#define EACH6(op) EACH4(op) op(16, 17) op(18, 19) op(20, 21) op(22, 23)
#define ZERO(i, j) "movi v" #i ".4s, #0\n movi v" #j ".4s, #0\n"
#define LOAD(i, j) "ldp q" #i ", q" #j ", [%[acc], #16 * " #i "]\n"
#define STORE(i, j) "stp q" #i ", q" #j ", [%[acc], #16 * " #i "]\n"
#define PANELS(op)                                                                             \
  op("acc", 0, 1, 0) op("acc", 6, 7, 32) op("acc", 12, 13, 64) op("acc", 18, 19, 96)          \
  op("acc1", 2, 3, 0) op("acc1", 8, 9, 32) op("acc1", 14, 15, 64) op("acc1", 20, 21, 96)      \
  op("acc2", 4, 5, 0) op("acc2", 10, 11, 32) op("acc2", 16, 17, 64) op("acc2", 22, 23, 96)
#define LOAD_GATHERED(x, i, j, at) "ldp q" #i ", q" #j ", [%[" x "], #" #at "]\n"
#define STORE_SCATTERED(x, i, j, at) "stp q" #i ", q" #j ", [%[" x "], #" #at "]\n"
#define MAX4(a, b, c, d)                                                                      \
  "fmax v24.4s, v24.4s, v" #a ".4s\n fmax v25.4s, v25.4s, v" #b ".4s\n"                       \
  "fmax v26.4s, v26.4s, v" #c ".4s\n fmax v27.4s, v27.4s, v" #d ".4s\n"
#define MAX6(a, b, c, d, e, f)                                                                \
  MAX4(a, b, c, d) "fmax v28.4s, v28.4s, v" #e ".4s\n fmax v29.4s, v29.4s, v" #f ".4s\n"
#define MAX_OF_4                                                                              \
  "ldp q24, q25, [%[best]]\n ldp q26, q27, [%[best], #32]\n"                                            \
  MAX4(0, 1, 2, 3) MAX4(4, 5, 6, 7) MAX4(8, 9, 10, 11) MAX4(12, 13, 14, 15)                   \
  "stp q24, q25, [%[best]]\n stp q26, q27, [%[best], #32]\n"
#define MAX_OF_6                                                                              \
  "ldp q24, q25, [%[best]]\n ldp q26, q27, [%[best], #32]\n ldp q28, q29, [%[best], #64]\n"                  \
  MAX6(0, 1, 2, 3, 4, 5) MAX6(6, 7, 8, 9, 10, 11) MAX6(12, 13, 14, 15, 16, 17) MAX6(18, 19, 20, 21, 22, 23) \
  "stp q24, q25, [%[best]]\n stp q26, q27, [%[best], #32]\n stp q28, q29, [%[best], #64]\n"
#define STEPS(step)                                                                           \
  "2:\n ldp %[b], %[pairs], [%[slabs]], #16\n add %[b], %[b], %[offset]\n"                                            \
  "1:\n" step "subs %[pairs], %[pairs], #1\n" step "b.ne 1b\n subs %[count], %[count], #1\n b.ne 2b\n"
#define OPERANDS                                                                              \
  : [a] "+r"(a), [a1] "+r"(a1), [a2] "+r"(a2), [b] "=&r"(b), [pairs] "=&r"(pairs), [slabs] "+r"(slabs), \
    [count] "+r"(count)                                                                       \
  : [acc] "r"(acc), [acc1] "r"(acc1), [acc2] "r"(acc2), [best] "r"(best), [offset] "r"(offset), \
    [ahead] "r"(ahead)                                                                        \
  : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",  \
    "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",        \
    "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  const Bf16* b;
  long pairs;
  if constexpr (C.gathered && C.scores)
    asm volatile(EACH6(ZERO) STEPS(STEP6_GATHERED) MAX_OF_6 EACH6(STORE) OPERANDS);
  else if constexpr (C.gathered)
    asm volatile(PANELS(LOAD_GATHERED) STEPS(STEP6) PANELS(STORE_SCATTERED) OPERANDS);
  else if constexpr (Pairs == 6 && C.scores)
    asm volatile(EACH6(ZERO) STEPS(STEP6) MAX_OF_6 EACH6(STORE) OPERANDS);
  else if constexpr (Pairs == 6)
    asm volatile(EACH6(LOAD) STEPS(STEP6) EACH6(STORE) OPERANDS);
  else if constexpr (C.scores)
    asm volatile(EACH4(ZERO) STEPS(STEP4) MAX_OF_4 EACH4(STORE) OPERANDS);
  else
    asm volatile(EACH4(LOAD) STEPS(STEP4) EACH4(STORE) OPERANDS);
#undef COLUMN
#undef STEP6
#undef STEP6_GATHERED
#undef STEP4
#undef EACH4
#undef EACH6
#undef ZERO
#undef LOAD
#undef STORE
#undef PANELS
#undef LOAD_GATHERED
#undef STORE_SCATTERED
#undef MAX4
#undef MAX6
#undef MAX_OF_4
#undef MAX_OF_6
#undef STEPS
#undef OPERANDS
}

// The same for two pairs of rows. Their eight accumulators would not cover the latency, so there are two Bs, the second
// `step` bytes further, with its accumulators following; or one B, at the end.
template <bool Scores, bool Both>
[[gnu::always_inline]] inline void product_of_4(const Bf16* a, const Slab* slabs, long count, int64_t offset,
                                                int64_t step, float* acc, float* best) {
#define MULTIPLY(b0, b1, b2, b3, c0, c1, c2, c3, c4, c5, c6, c7)                              \
  "bfmmla v" #c0 ".4s, v24.8h, v" #b0 ".8h\n bfmmla v" #c1 ".4s, v25.8h, v" #b0 ".8h\n"       \
  "bfmmla v" #c2 ".4s, v24.8h, v" #b1 ".8h\n bfmmla v" #c3 ".4s, v25.8h, v" #b1 ".8h\n"       \
  "bfmmla v" #c4 ".4s, v24.8h, v" #b2 ".8h\n bfmmla v" #c5 ".4s, v25.8h, v" #b2 ".8h\n"       \
  "bfmmla v" #c6 ".4s, v24.8h, v" #b3 ".8h\n bfmmla v" #c7 ".4s, v25.8h, v" #b3 ".8h\n"
#define FIRST                                                                                 \
  "ldp q16, q17, [%1], #64\n ldp q24, q25, [%0], #32\n ldp q18, q19, [%1, #-32]\n"            \
  MULTIPLY(16, 17, 18, 19, 0, 1, 2, 3, 4, 5, 6, 7)
#define SECOND                                                                                \
  "ldp q20, q21, [%2], #64\n ldp q22, q23, [%2, #-32]\n"                                      \
  MULTIPLY(20, 21, 22, 23, 8, 9, 10, 11, 12, 13, 14, 15)
#define EACH1(op) op(0, 1) op(2, 3) op(4, 5) op(6, 7)
#define EACH2(op) EACH1(op) op(8, 9) op(10, 11) op(12, 13) op(14, 15)
#define ZERO(i, j) "movi v" #i ".4s, #0\n movi v" #j ".4s, #0\n"
#define LOAD(i, j) "ldp q" #i ", q" #j ", [%6, #16 * " #i "]\n"
#define STORE(i, j) "stp q" #i ", q" #j ", [%6, #16 * " #i "]\n"
#define MAX(i, j) "fmax v24.4s, v24.4s, v" #i ".4s\n fmax v25.4s, v25.4s, v" #j ".4s\n"
#define MAX_OF(each) "ldp q24, q25, [%7]\n" each(MAX) "stp q24, q25, [%7]\n"
#define STEPS(step)                                                                           \
  "2:\n ldp %1, %3, [%4], #16\n add %1, %1, %8\n add %2, %1, %9\n"                           \
  "1:\n" step "subs %3, %3, #1\n" step "b.ne 1b\n subs %5, %5, #1\n b.ne 2b\n"
#define OPERANDS                                                                              \
  : "+r"(a), "=&r"(b), "=&r"(other), "=&r"(pairs), "+r"(slabs), "+r"(count) : "r"(acc), "r"(best), \
    "r"(offset), "r"(step)                                                                   \
  : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",  \
    "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25"
  const Bf16 *b, *other;
  long pairs;
  if constexpr (Scores && Both)
    asm volatile(EACH2(ZERO) STEPS(FIRST SECOND) MAX_OF(EACH2) EACH2(STORE) OPERANDS);
  else if constexpr (Scores)
    asm volatile(EACH1(ZERO) STEPS(FIRST) MAX_OF(EACH1) EACH1(STORE) OPERANDS);
  else if constexpr (Both)
    asm volatile(EACH2(LOAD) STEPS(FIRST SECOND) EACH2(STORE) OPERANDS);
  else
    asm volatile(EACH1(LOAD) STEPS(FIRST) EACH1(STORE) OPERANDS);
#undef MULTIPLY
#undef FIRST
#undef SECOND
#undef EACH1
#undef EACH2
#undef ZERO
#undef LOAD
#undef STORE
#undef MAX
#undef MAX_OF
#undef STEPS
#undef OPERANDS
}

// Processes `many` (a multiple of 8) keys of k, or dims of v, whose groups of eight are `step` bytes apart.
template <int Pairs, bool Scores>
[[gnu::always_inline]] inline void products(const Bf16* a, const Slab* slabs, long count, int many, int64_t step,
                                             int64_t ahead, float* acc, float* best) {
  constexpr int kStep = 8 * 2 * Pairs;  // of acc
  int n = 0;
  if constexpr (Pairs == 2) {
    for (; n + 16 <= many; n += 16, acc += 2 * kStep)
      product_of_4<Scores, true>(a, slabs, count, n / 8 * step, step, acc, best);
    if (n < many) product_of_4<Scores, false>(a, slabs, count, n / 8 * step, step, acc, best);
  } else {
    for (; n < many; n += 8, acc += kStep)
      product<Pairs, ProductConfig{.scores = Scores}>(a, slabs, count, n / 8 * step, ahead, acc, best);
  }
}

// Rounds to nearest even and keeps NaN, like neon::narrow.
void narrow_by_instruction(const float* from, int64_t n, void* to) {
  uint16_t* x = static_cast<uint16_t*>(to);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(from + i));
    vst1q_u16(x + i, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(from + i + 4))));
  }
  neon::narrow<Bf16>(from + i, n - i, x + i);
}

// Converts two vectors [r0k0 r0k1 r1k0 r1k1] [r0k2 r0k3 r1k2 r1k3] to one operand of the second product, [r0: k0 k2 k1
// k3 | r1: k0 k2 k1 k3]. A bf16 is the upper half of a float, so after rounding (half away from zero) one TRN2 both
// narrows and interleaves. BFCVTN would issue only once per cycle and need a shuffle in addition.
[[gnu::always_inline]] inline uint16x8_t joined(float32x4_t a, float32x4_t b) {
  const uint32x4_t half = vdupq_n_u32(0x8000);
  return vtrn2q_u16(vreinterpretq_u16_u32(vaddq_u32(vreinterpretq_u32_f32(a), half)),
                    vreinterpretq_u16_u32(vaddq_u32(vreinterpretq_u32_f32(b), half)));
}

// Rounds like `joined`.
float rounded_weight(float x) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x8000) & 0xFFFF0000); }

template <int P>  // pairs of rows in a panel
struct Panels {
  static constexpr int kPairs = P, kRows = 2 * P;

  // [dim / 4][pairs][2 rows][4]; the scale is not folded in, since q would be rounded a second time.
  static void pack_q(const void* const* rows, int n, int dim, float, void* to) {
    interleave<kPairs>(rows, 0, n, dim, static_cast<Bf16*>(to));
  }

  // s: [n / 2][pairs][2 rows][2 keys]
  static void scores(const void* q, const void* k_tile, int n, int dim, float* s, float* top) {
    const Bf16* k = static_cast<const Bf16*>(k_tile);
    float best[2 * kRows];  // per pair of rows [r0 r0 r1 r1]
    std::fill_n(best, 2 * kRows, -std::numeric_limits<float>::infinity());
    const Slab slab{k, dim / 8};
    products<kPairs, true>(static_cast<const Bf16*>(q), &slab, 1, n, int64_t(16) * dim, 1024, s, best);
    for (int r = 0; r < kRows; r += 4)
      vst1q_f32(top + r, vpmaxq_f32(vld1q_f32(best + 2 * r), vld1q_f32(best + 2 * r + 4)));
  }

  static void hide(float* s, int n, const int* first, const int* last, float* top) {
    const int32x4_t key = {0, 1, 0, 1};
    for (int c = 0; c < kPairs; ++c) {
      const int32x4_t from = {first[2 * c], first[2 * c], first[2 * c + 1], first[2 * c + 1]};
      const int32x4_t until = {last[2 * c], last[2 * c], last[2 * c + 1], last[2 * c + 1]};
      float32x4_t best = minus_inf();
      for (int j = 0; j < n; j += 2) {
        float* x = s + (j / 2 * kPairs + c) * 4;
        const int32x4_t at = vaddq_s32(vdupq_n_s32(j), key);
        const uint32x4_t seen = vandq_u32(vcgeq_s32(at, from), vcltq_s32(at, until));
        const float32x4_t y = vbslq_f32(seen, vld1q_f32(x), minus_inf());
        vst1q_f32(x, y);
        best = vmaxq_f32(best, y);
      }
      const float32x4_t both = vpmaxq_f32(best, best);
      top[2 * c] = both[0], top[2 * c + 1] = both[1];
    }
  }

  // Through exp2 at a time: kExp pairs of rows, and kFours groups of four keys of each.
  static constexpr int kExp = kPairs == 6 ? 3 : kPairs, kFours = kPairs == 2 ? 2 : 1;

  // p: [n / 4][pairs][2 rows][4 keys]
  template <bool LargeLogits>
  static void weights_by(const float* s, int n, float scale, const float* ref, float* sum, void* p) {
    const float32x4_t scales = vdupq_n_f32(scale);
    for (int c = 0; c < kPairs; c += kExp) {
      Exp2Row row[kExp];
      float32x4_t total[kExp], large_ref[kExp];
      unroll<kExp>([&](auto i) {
        const float* r = ref + 2 * (c + i);
        large_ref[i] = finite_ref(float32x4_t{r[0], r[0], r[1], r[1]});
        row[i] = Exp2Row(LargeLogits ? vdupq_n_f32(0) : large_ref[i]);
        total[i] = vdupq_n_f32(0);
      });
      const float* from = s + 4 * c;
      uint16_t* to = static_cast<uint16_t*>(p) + 8 * c;
      constexpr int kAll = 2 * kExp * kFours;
      for (int j = 0; j < n; j += 4 * kFours, from += 4 * kRows * kFours, to += 4 * kRows * kFours) {
        float32x4_t e[kAll];
        unroll<kAll>([&](auto i) { e[i] = vld1q_f32(from + 2 * kRows * (i / kExp) + 4 * (i % kExp)); });
        unroll<kAll>([&](auto i) { e[i] = vmulq_f32(e[i], scales); });
        if constexpr (LargeLogits) unroll<kAll>([&](auto i) { e[i] = vsubq_f32(e[i], large_ref[i % kExp]); });
        exp2<3>(e, row);
        unroll<kExp * kFours>([&](auto i) {
          constexpr int kFour = i / kExp, kPair = i % kExp;
          vst1q_u16(to + 4 * kRows * kFour + 8 * kPair, joined(e[2 * kExp * kFour + kPair],
                                                               e[2 * kExp * kFour + kExp + kPair]));
        });
        unroll<kAll>([&](auto i) { total[i % kExp] = vaddq_f32(total[i % kExp], e[i]); });
      }
      for (int i = 0; i < kExp; ++i) {
        sum[2 * (c + i)] += total[i][0] + total[i][1];
        sum[2 * (c + i) + 1] += total[i][2] + total[i][3];
      }
    }
  }

  static void weights(const float* s, int n, float scale, const float* ref, float* sum, void* p) {
    any_large_logit(ref, kRows) ? weights_by<true>(s, n, scale, ref, sum, p)
                                : weights_by<false>(s, n, scale, ref, sum, p);
  }

  // o: [dim / 8][4 pairs][pairs][2 rows][2 dims]
  static void rescale(float* o, int dim, const float* factor) {
    for (int c = 0; c < kPairs; ++c) {
      const float32x4_t f = {factor[2 * c], factor[2 * c], factor[2 * c + 1], factor[2 * c + 1]};
      for (int d = 0; d < dim / 2; ++d) {
        float* x = o + (d * kPairs + c) * 4;
        vst1q_f32(x, vmulq_f32(vld1q_f32(x), f));
      }
    }
  }

  static void accumulate_runs(const void* p, const KeyRun* runs, int count, int capacity, int dim, float* o) {
    constexpr int kMost = 16;
    for (int done = 0, many; done < count; done += many) {
      Slab slabs[kMost];
      many = std::min(count - done, kMost);
      int n = 0;
      for (int i = 0; i < many; ++i) {
        const KeyRun& run = runs[done + i];
        slabs[i] = {static_cast<const Bf16*>(run.v) + 8 * run.first, run.n / 8};
        n += run.n;
      }
      // The next dims of the same keys, which are contiguous if all keys of the tile are used.
      const int64_t ahead = n < capacity ? 16 * capacity : 1024;
      products<kPairs, false>(static_cast<const Bf16*>(p), slabs, many, dim, int64_t(16) * capacity, ahead, o, nullptr);
      p = static_cast<const Bf16*>(p) + n * kRows;
    }
  }
  static void accumulate(const void* p, const void* v, int capacity, int first, int n, int dim, float* o) {
    const KeyRun run{v, first, n};
    accumulate_runs(p, &run, 1, capacity, dim, o);
  }

  // For a panel of twelve rows composed of three panels of four.
  static void scores_gathered(const void* const* q, const void* k, int n, int dim, float* s, float* top) {
    float best[2 * kRows];
    std::fill_n(best, 2 * kRows, -std::numeric_limits<float>::infinity());
    const Slab slab{static_cast<const Bf16*>(k), dim / 8};
    const auto at = [&](int i) { return static_cast<const Bf16*>(q[i]); };
    for (int j = 0; j < n; j += 8, s += 8 * kRows)
      product<6, ProductConfig{.scores = true, .gathered = true}>(at(0), &slab, 1, int64_t(2) * j * dim, 1024, s, best,
                                                              at(1), at(2));
    for (int r = 0; r < kRows; r += 4)
      vst1q_f32(top + r, vpmaxq_f32(vld1q_f32(best + 2 * r), vld1q_f32(best + 2 * r + 4)));
  }
  static void accumulate_scattered(const void* p, const void* v, int capacity, int n, int dim, float* const* o) {
    const Slab slab{static_cast<const Bf16*>(v), n / 8};
    for (int d = 0; d < dim; d += 8)
      product<6, ProductConfig{.gathered = true}>(static_cast<const Bf16*>(p), &slab, 1, int64_t(2) * d * capacity,
                                                  1024, o[0] + 4 * d, nullptr, nullptr, nullptr, o[1] + 4 * d,
                                                  o[2] + 4 * d);
  }

  // Calls f(r, d, x, y) for each row and group of eight dims. Two rows are the halves of the same vectors.
  template <class F>
  [[gnu::always_inline]] static void each_eight(const float* o, int dim, int n, const F& f) {
    for (int r = 0; r < n; r += 2) {
      const float* from = o + 2 * r;
      for (int d = 0; d < dim; d += 8, from += 8 * kRows) {
        float64x2_t x[4];  // two dims of both rows
        unroll<4>([&](auto i) { x[i] = vreinterpretq_f64_f32(vld1q_f32(from + 2 * kRows * i)); });
        f(r, d, vreinterpretq_f32_f64(vzip1q_f64(x[0], x[1])), vreinterpretq_f32_f64(vzip1q_f64(x[2], x[3])));
        if (r + 1 < n)
          f(r + 1, d, vreinterpretq_f32_f64(vzip2q_f64(x[0], x[1])), vreinterpretq_f32_f64(vzip2q_f64(x[2], x[3])));
      }
    }
  }

  static void add_row(const float* x, int dim, int r, float* o) {
    for (int d = 0; d < dim; ++d) o[(d / 2 * kPairs + r / 2) * 4 + r % 2 * 2 + d % 2] += x[d];
  }

  static void unpack(const float* o, int dim, const float* factor, int n, float* to, int64_t stride) {
    each_eight(o, dim, n, [&](int r, int d, float32x4_t x, float32x4_t y) __attribute__((always_inline)) {
      vst1q_f32(to + r * stride + d, vmulq_n_f32(x, factor[r]));
      vst1q_f32(to + r * stride + d + 4, vmulq_n_f32(y, factor[r]));
    });
  }

  static void add(const float* o, int dim, float factor, int n, float* const* to) {
    const auto sum = [&](float* x, float32x4_t y) __attribute__((always_inline)) {
      vst1q_f32(x, vaddq_f32(vld1q_f32(x), vmulq_n_f32(y, factor)));
    };
    each_eight(o, dim, n, [&](int r, int d, float32x4_t x, float32x4_t y) __attribute__((always_inline)) {
      sum(to[r] + d, x), sum(to[r] + d + 4, y);
    });
  }

  static void store(const float* o, int dim, const float* factor, int n, char* const* to) {
    each_eight(o, dim, n, [&](int r, int d, float32x4_t x, float32x4_t y) __attribute__((always_inline)) {
      const bfloat16x8_t low = vcvtq_low_bf16_f32(vmulq_n_f32(x, factor[r]));
      vst1q_u16(reinterpret_cast<uint16_t*>(to[r]) + d,
                vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vmulq_n_f32(y, factor[r]))));
    });
  }

  static void join(const float* o, int dim, const float* factor, const float* before, int n, char* const* to) {
    each_eight(o, dim, n, [&](int r, int d, float32x4_t x, float32x4_t y) __attribute__((always_inline)) {
      float* at = reinterpret_cast<float*>(to[r]) + d;
      x = vmulq_n_f32(x, factor[r]), y = vmulq_n_f32(y, factor[r]);
      if (before[r] != 0.f) {
        x = vaddq_f32(x, vmulq_n_f32(vld1q_f32(at), before[r]));
        y = vaddq_f32(y, vmulq_n_f32(vld1q_f32(at + 4), before[r]));
      }
      vst1q_f32(at, x), vst1q_f32(at + 4, y);
    });
  }

  template <int kDegree>  // of the exponential
  static float gradients(const float* s, const float* dp, int n, float scale, const float* lse, const float* delta,
                         void* p, void* ds) {
    const Exp2Row row[1] = {Exp2Row(vdupq_n_f32(0))};
    const float32x4_t scales = vdupq_n_f32(scale);
    float32x4_t sum = vdupq_n_f32(0);
    const auto twice = [](const float* x) __attribute__((always_inline)) {
      const float32x2_t y = vld1_f32(x);
      return vcombine_f32(y, y);
    };
    uint16_t *p_to = static_cast<uint16_t*>(p), *ds_to = static_cast<uint16_t*>(ds);
    for (int j = 0; j < n; j += 4, s += 4 * kRows, dp += 4 * kRows, p_to += 4 * kRows, ds_to += 4 * kRows) {
      const float32x4_t l[2] = {twice(lse + j), twice(lse + j + 2)}, d[2] = {twice(delta + j), twice(delta + j + 2)};
      for (int c = 0; c < kPairs; c += kExp) {
        float32x4_t e[2 * kExp], g[2 * kExp];
        unroll<2 * kExp>([&](auto i) { e[i] = vld1q_f32(s + 2 * kRows * (i / kExp) + 4 * (c + i % kExp)); });
        unroll<2 * kExp>([&](auto i) { e[i] = vsubq_f32(vmulq_f32(e[i], scales), l[i / kExp]); });
        exp2<kDegree>(e, row);
        unroll<2 * kExp>([&](auto i) {
          g[i] = vmulq_f32(e[i], vsubq_f32(vld1q_f32(dp + 2 * kRows * (i / kExp) + 4 * (c + i % kExp)), d[i / kExp]));
        });
        unroll<kExp>([&](auto i) { vst1q_u16(p_to + 8 * (c + i), joined(e[i], e[i + kExp])); });
        unroll<kExp>([&](auto i) { vst1q_u16(ds_to + 8 * (c + i), joined(g[i], g[i + kExp])); });
        unroll<2 * kExp>([&](auto i) { sum = vaddq_f32(sum, g[i]); });
      }
    }
    return vaddvq_f32(sum);
  }

  // Four queries by four keys at a time: two vectors hold [k0: q0 q2 q1 q3 | k1: ...] and [k2 | k3], and one table
  // look-up each makes [q0: k0 k2 k1 k3 | q1: ...] and [q2 | q3].
  static void transpose(const void* ds_panel, int n, void* to, int rows, int64_t panel, int at) {
    alignas(16) static constexpr uint8_t kFirst[16] = {0, 1, 16, 17, 8, 9, 24, 25, 4, 5, 20, 21, 12, 13, 28, 29};
    const uint8x16_t first = vld1q_u8(kFirst), second = vaddq_u8(first, vdupq_n_u8(2));
    const uint8_t* ds = static_cast<const uint8_t*>(ds_panel);
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 4) {
        const uint8_t* from = ds + (j * kRows + r * 4) * 2;
        const uint8x16x2_t block = {{vld1q_u8(from), vld1q_u8(from + 16)}};
        uint8_t* place = static_cast<uint8_t*>(to) + (j / rows * panel + (at + r) * rows + j % rows * 4) * 2;
        vst1q_u8(place, vqtbl2q_u8(block, first));
        vst1q_u8(place + 16, vqtbl2q_u8(block, second));
      }
  }

  static void read_scores(const float* s, int n, float* plain, int64_t stride) {
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 2) {
        const float32x4_t a = vld1q_f32(s + (j / 2 * kPairs + r / 2) * 4),
                          b = vld1q_f32(s + ((j / 2 + 1) * kPairs + r / 2) * 4);
        vst1q_f32(plain + r * stride + j, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
        vst1q_f32(plain + (r + 1) * stride + j, vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
      }
  }

  static void write_scores(const float* plain, int64_t stride, int n, float* s) {
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 2) {
        const float32x4_t a = vld1q_f32(plain + r * stride + j), b = vld1q_f32(plain + (r + 1) * stride + j);
        vst1q_f32(s + (j / 2 * kPairs + r / 2) * 4, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
        vst1q_f32(s + ((j / 2 + 1) * kPairs + r / 2) * 4, vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
      }
  }

  static void write_weights(const float* plain, int64_t stride, int n, void* to) {
    uint16_t* p = static_cast<uint16_t*>(to);
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 2) {
        const float32x4_t a = vld1q_f32(plain + r * stride + j), b = vld1q_f32(plain + (r + 1) * stride + j);
        const uint16x8_t y =
            joined(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
        vst1q_u16(p + j * kRows + r * 4, y);
      }
  }
};

template <int P>
constexpr CpuKernels kernels() {
  return {.isa = "neon_bf16",
          .needs = bit(Feature::neon) | bit(Feature::neon_bf16),
          .dtype = DType::bf16,
          .rows = Panels<P>::kRows,
          .keys = kKeys,
          .tile = kTile,
          .dim_step = 8,
          .operand_bytes = sizeof(Bf16),
          .scale_in_q = false,
          .pack_q = Panels<P>::pack_q,
          .pack_k = pack_k,
          .pack_v = pack_v,
          .scores = Panels<P>::scores,
          .hide = Panels<P>::hide,
          .weights = Panels<P>::weights,
          .rounded_weight = rounded_weight,
          .rescale = Panels<P>::rescale,
          .accumulate = Panels<P>::accumulate,
          .accumulate_runs = Panels<P>::accumulate_runs,
          .scores_gathered = P == 6 ? Panels<6>::scores_gathered : nullptr,
          .accumulate_scattered = P == 6 ? Panels<6>::accumulate_scattered : nullptr,
          .add_row = Panels<P>::add_row,
          .unpack = Panels<P>::unpack,
          .store = Panels<P>::store,
          .join = Panels<P>::join,
          .add = Panels<P>::add,
          .gradients = Panels<P>::template gradients<3>,
          .summed_gradients = Panels<P>::template gradients<5>,
          .transpose = Panels<P>::transpose,
          .read_scores = Panels<P>::read_scores,
          .write_scores = Panels<P>::write_scores,
          .write_weights = Panels<P>::write_weights,
          .widen = widen<Bf16>,
          .narrow = narrow_by_instruction,
          .finite = finite<Bf16>,
          .dot = dot<Bf16>};
}

}  // namespace

const CpuKernels kNeonBf16Kernels[3] = {kernels<6>(), kernels<4>(), kernels<2>()};

}  // namespace attune
