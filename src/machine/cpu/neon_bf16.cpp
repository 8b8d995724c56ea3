// Arm NEON with BFMMLA: bf16 operands, f32 accumulation, P (and dS) rounded to bf16. BFMMLA multiplies 2 x 4 by 4 x 2,
// so everything comes in 2 x 2 blocks: a vector of s is [r0k0 r0k1 r1k0 r1k1]. The softmax does not care; row maxima
// and sums fold lane pairs at the end. A 12 x 8 tile again: 24 accumulators, 24 products for 10 loads.
#include <algorithm>
#include <limits>

#include "machine/cpu/kernels.h"
#include "machine/cpu/neon.h"

namespace attune {
namespace {

using namespace neon;

constexpr int kRows = 12, kKeys = 8, kTile = 512;
constexpr int kPairs = kRows / 2;

const Bf16* row_or_zeros(const void* const* rows, int r, int n) {
  return r < n ? static_cast<const Bf16*>(rows[r]) : reinterpret_cast<const Bf16*>(kZeros);
}

// Two rows to [dim / 4][2][4], the groups of four `step` elements apart.
void interleave2(const Bf16* a, const Bf16* b, int dim, Bf16* to, int step) {
  for (int d = 0; d < dim; d += 8, to += 2 * step) {
    const uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16(&a[d].bits)), y = vreinterpretq_u64_u16(vld1q_u16(&b[d].bits));
    vst1q_u16(&to->bits, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
    vst1q_u16(&to[step].bits, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
  }
}

// [dim / 4][6 pairs][2 rows][4]; the scale is not folded in, since q would be rounded a second time.
void pack_q(const void* const* rows, int n, int dim, float, void* to) {
  for (int r = 0; r < kRows; r += 2)
    interleave2(row_or_zeros(rows, r, n), row_or_zeros(rows, r + 1, n), dim, static_cast<Bf16*>(to) + r * 4, kRows * 4);
}

// [n / 8][dim / 4][8 keys][4]
void pack_k(const void* const* rows, int n, int dim, void* to) {
  for (int j = 0; j < (n + 7) / 8 * 8; j += 2)
    interleave2(row_or_zeros(rows, j, n), row_or_zeros(rows, j + 1, n), dim,
                static_cast<Bf16*>(to) + int64_t(j / 8) * 8 * dim + j % 8 * 4, 32);
}

// [dim / 8][room / 4][8 dims][4 keys]; the four keys in the order 0 2 1 3, in which `joined` leaves P.
void pack_v(const void* const* rows, int n, int dim, void* to, int room) {
  for (int j = 0; j < (n + 7) / 8 * 8; j += 4) {
    const Bf16* x[4] = {row_or_zeros(rows, j, n), row_or_zeros(rows, j + 2, n), row_or_zeros(rows, j + 1, n),
                        row_or_zeros(rows, j + 3, n)};
    Bf16* v = static_cast<Bf16*>(to) + j * 8;
    for (int d = 0; d < dim; d += 8, v += int64_t(8) * room) {
      const uint16x8x4_t four = {
          {vld1q_u16(&x[0][d].bits), vld1q_u16(&x[1][d].bits), vld1q_u16(&x[2][d].bits), vld1q_u16(&x[3][d].bits)}};
      vst4q_u16(&v->bits, four);  // an 8 x 4 transpose
    }
  }
}

// acc[b][a] (+)= A_a B_b^T over `steps` (even) groups of four: A is [steps][6][8], B [steps][4][8],
// acc 24 vectors in memory. In assembly because 24 accumulators and ten operands do not fit 32
// registers at once: compilers hoist the loads and spill (g++ 12 loses half the speed).
// Scores start from zero and fold their maximum over b into best[a] while still in registers.
template <bool Scores>
[[gnu::always_inline]] inline void product(const Bf16* a, const Bf16* b, int steps, float* acc, float* best) {
#define COLUMN(x, c0, c1, c2, c3)                                                             \
  "bfmmla v" #c0 ".4s, " x ".8h, v24.8h\n bfmmla v" #c1 ".4s, " x ".8h, v25.8h\n"             \
  "bfmmla v" #c2 ".4s, " x ".8h, v26.8h\n bfmmla v" #c3 ".4s, " x ".8h, v27.8h\n"
#define STEP                                                                                  \
  "ldp q24, q25, [%1], #64\n ldp q28, q29, [%0], #96\n ldp q26, q27, [%1, #-32]\n"            \
  COLUMN("v28", 0, 6, 12, 18) "ldp q30, q31, [%0, #-64]\n" COLUMN("v29", 1, 7, 13, 19)         \
  "ldp q28, q29, [%0, #-32]\n" COLUMN("v30", 2, 8, 14, 20) COLUMN("v31", 3, 9, 15, 21)         \
  COLUMN("v28", 4, 10, 16, 22) COLUMN("v29", 5, 11, 17, 23)
#define EACH(op)                                                                              \
  op(0, 1) op(2, 3) op(4, 5) op(6, 7) op(8, 9) op(10, 11)                                     \
  op(12, 13) op(14, 15) op(16, 17) op(18, 19) op(20, 21) op(22, 23)
#define ZERO(i, j) "movi v" #i ".4s, #0\n movi v" #j ".4s, #0\n"
#define LOAD(i, j) "ldp q" #i ", q" #j ", [%3, #16 * " #i "]\n"
#define STORE(i, j) "stp q" #i ", q" #j ", [%3, #16 * " #i "]\n"
#define MAX6(a, b, c, d, e, f)                                                                \
  "fmax v24.4s, v24.4s, v" #a ".4s\n fmax v25.4s, v25.4s, v" #b ".4s\n fmax v26.4s, v26.4s, v" #c ".4s\n"  \
  "fmax v27.4s, v27.4s, v" #d ".4s\n fmax v28.4s, v28.4s, v" #e ".4s\n fmax v29.4s, v29.4s, v" #f ".4s\n"
#define MAX                                                                                   \
  "ldp q24, q25, [%4]\n ldp q26, q27, [%4, #32]\n ldp q28, q29, [%4, #64]\n"                  \
  MAX6(0, 1, 2, 3, 4, 5) MAX6(6, 7, 8, 9, 10, 11) MAX6(12, 13, 14, 15, 16, 17) MAX6(18, 19, 20, 21, 22, 23) \
  "stp q24, q25, [%4]\n stp q26, q27, [%4, #32]\n stp q28, q29, [%4, #64]\n"
#define CLOBBERED                                                                             \
  "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",    \
      "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",      \
      "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"
  long pairs = steps / 2;
  if constexpr (Scores)
    asm volatile(EACH(ZERO) "1:\n" STEP "subs %2, %2, #1\n" STEP "b.ne 1b\n" MAX EACH(STORE)
                 : "+r"(a), "+r"(b), "+r"(pairs) : "r"(acc), "r"(best) : CLOBBERED);
  else
    asm volatile(EACH(LOAD) "1:\n" STEP "subs %2, %2, #1\n" STEP "b.ne 1b\n" EACH(STORE)
                 : "+r"(a), "+r"(b), "+r"(pairs) : "r"(acc) : CLOBBERED);
#undef COLUMN
#undef STEP
#undef EACH
#undef ZERO
#undef LOAD
#undef STORE
#undef MAX6
#undef MAX
#undef CLOBBERED
}

// s: [n / 2][6 pairs][2 rows][2 keys]
void scores(const void* q, const void* k_tile, int n, int dim, float* s, float* top) {
  const Bf16* k = static_cast<const Bf16*>(k_tile);
  float best[2 * kRows];  // per pair of rows [r0 r0 r1 r1]
  std::fill_n(best, 2 * kRows, -std::numeric_limits<float>::infinity());
  for (int j = 0; j < n; j += 8, k += 8 * dim, s += 8 * kRows)
    product<true>(static_cast<const Bf16*>(q), k, dim / 4, s, best);
  for (int c = 0; c < 3; ++c) vst1q_f32(top + 4 * c, vpmaxq_f32(vld1q_f32(best + 8 * c), vld1q_f32(best + 8 * c + 4)));
}

void hide(float* s, int n, const int* first, const int* last, float* top) {
  const int32x4_t key = {0, 1, 0, 1};
  for (int c = 0; c < kPairs; ++c) {
    const int32x4_t from = {first[2 * c], first[2 * c], first[2 * c + 1], first[2 * c + 1]};
    const int32x4_t until = {last[2 * c], last[2 * c], last[2 * c + 1], last[2 * c + 1]};
    float32x4_t best = minus_inf();
    for (int j = 0; j < n; j += 2) {
      float* x = s + (j / 2 * kPairs + c) * 4;
      const int32x4_t at = vaddq_s32(vdupq_n_s32(j), key);
      const float32x4_t y = vbslq_f32(vandq_u32(vcgeq_s32(at, from), vcltq_s32(at, until)), vld1q_f32(x), minus_inf());
      vst1q_f32(x, y);
      best = vmaxq_f32(best, y);
    }
    const float32x4_t both = vpmaxq_f32(best, best);
    top[2 * c] = both[0], top[2 * c + 1] = both[1];
  }
}

// Two vectors [r0k0 r0k1 r1k0 r1k1] [r0k2 r0k3 r1k2 r1k3] to one operand of the second product,
// [r0: k0 k2 k1 k3 | r1: k0 k2 k1 k3]: a bf16 is the upper half of a float, so after rounding (half away from zero)
// one TRN2 both narrows and interleaves. BFCVTN would issue once a cycle and need a shuffle on top.
[[gnu::always_inline]] inline uint16x8_t joined(float32x4_t a, float32x4_t b) {
  const uint32x4_t half = vdupq_n_u32(0x8000);
  return vtrn2q_u16(vreinterpretq_u16_u32(vaddq_u32(vreinterpretq_u32_f32(a), half)),
                    vreinterpretq_u16_u32(vaddq_u32(vreinterpretq_u32_f32(b), half)));
}

constexpr int kExp = 3;  // pairs of rows through exp2 at a time

// p: [n / 4][6 pairs][2 rows][4 keys]
template <bool Far>
void weights_by(const float* s, int n, float scale, const float* ref, float* sum, void* p) {
  const float32x4_t scales = vdupq_n_f32(scale);
  for (int c = 0; c < kPairs; c += kExp) {
    Exp2Row row[kExp];
    float32x4_t total[kExp], far_ref[kExp];
    unroll<kExp>([&](auto i) {
      const float* r = ref + 2 * (c + i);
      far_ref[i] = finite_ref(float32x4_t{r[0], r[0], r[1], r[1]});
      row[i] = Exp2Row(Far ? vdupq_n_f32(0) : far_ref[i]);
      total[i] = vdupq_n_f32(0);
    });
    const float* from = s + 4 * c;
    uint16_t* to = static_cast<uint16_t*>(p) + 8 * c;
    for (int j = 0; j < n; j += 4, from += 4 * kRows, to += 4 * kRows) {
      float32x4_t e[2 * kExp];
      unroll<kExp>([&](auto i) { e[i] = vld1q_f32(from + 4 * i), e[i + kExp] = vld1q_f32(from + 2 * kRows + 4 * i); });
      unroll<2 * kExp>([&](auto i) { e[i] = vmulq_f32(e[i], scales); });
      if constexpr (Far) unroll<2 * kExp>([&](auto i) { e[i] = vsubq_f32(e[i], far_ref[i % kExp]); });
      exp2<3>(e, row);
      unroll<kExp>([&](auto i) { vst1q_u16(to + 8 * i, joined(e[i], e[i + kExp])); });
      unroll<2 * kExp>([&](auto i) { total[i % kExp] = vaddq_f32(total[i % kExp], e[i]); });
    }
    for (int i = 0; i < kExp; ++i) {
      sum[2 * (c + i)] += total[i][0] + total[i][1];
      sum[2 * (c + i) + 1] += total[i][2] + total[i][3];
    }
  }
}

void weights(const float* s, int n, float scale, const float* ref, float* sum, void* p) {
  any_far(ref, kRows) ? weights_by<true>(s, n, scale, ref, sum, p) : weights_by<false>(s, n, scale, ref, sum, p);
}

// o: [dim / 8][4 pairs][6 pairs][2 rows][2 dims]
void rescale(float* o, int dim, const float* factor) {
  for (int c = 0; c < kPairs; ++c) {
    const float32x4_t f = {factor[2 * c], factor[2 * c], factor[2 * c + 1], factor[2 * c + 1]};
    for (int d = 0; d < dim / 2; ++d) {
      float* x = o + (d * kPairs + c) * 4;
      vst1q_f32(x, vmulq_f32(vld1q_f32(x), f));
    }
  }
}

void accumulate(const void* p, const void* v_tile, int room, int first, int n, int dim, float* o) {
  const Bf16* v = static_cast<const Bf16*>(v_tile) + 8 * first;
  for (int d = 0; d < dim; d += 8, v += int64_t(8) * room, o += 8 * kRows)
    product<false>(static_cast<const Bf16*>(p), v, n / 4, o, nullptr);
}

void unpack(const float* o, int dim, const float* factor, int n, float* to, int64_t stride) {
  for (int d = 0; d < dim; d += 8, o += 8 * kRows)
    for (int r = 0; r < n; ++r) {  // row r is one half of four 2 x 2 blocks
      const float* from = o + r / 2 * 4 + r % 2 * 2;
      const float32x4_t lo = vcombine_f32(vld1_f32(from), vld1_f32(from + 24)),
                        hi = vcombine_f32(vld1_f32(from + 48), vld1_f32(from + 72));
      vst1q_f32(to + r * stride + d, vmulq_n_f32(lo, factor[r]));
      vst1q_f32(to + r * stride + d + 4, vmulq_n_f32(hi, factor[r]));
    }
}

void gradients(const float* s, const float* dp, int n, float scale, const float* lse, const float* delta, void* p,
               void* ds) {
  const Exp2Row row[1] = {Exp2Row(vdupq_n_f32(0))};
  const float32x4_t scales = vdupq_n_f32(scale);
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
      exp2<3>(e, row);
      unroll<2 * kExp>([&](auto i) {
        g[i] = vmulq_f32(e[i], vsubq_f32(vld1q_f32(dp + 2 * kRows * (i / kExp) + 4 * (c + i % kExp)), d[i / kExp]));
      });
      unroll<kExp>([&](auto i) { vst1q_u16(p_to + 8 * (c + i), joined(e[i], e[i + kExp])); });
      unroll<kExp>([&](auto i) { vst1q_u16(ds_to + 8 * (c + i), joined(g[i], g[i + kExp])); });
    }
  }
}

// Four queries by four keys at a time: two vectors hold [k0: q0 q2 q1 q3 | k1: ...] and [k2 | k3], and one table
// look-up each makes [q0: k0 k2 k1 k3 | q1: ...] and [q2 | q3].
void transpose(const void* ds_panel, int n, void* to, int64_t panel, int at) {
  alignas(16) static constexpr uint8_t kFirst[16] = {0, 1, 16, 17, 8, 9, 24, 25, 4, 5, 20, 21, 12, 13, 28, 29};
  const uint8x16_t first = vld1q_u8(kFirst), second = vaddq_u8(first, vdupq_n_u8(2));
  const uint8_t* ds = static_cast<const uint8_t*>(ds_panel);
  for (int j = 0; j < n; j += 4)
    for (int r = 0; r < kRows; r += 4) {
      const uint8_t* from = ds + (j * kRows + r * 4) * 2;
      const uint8x16x2_t block = {{vld1q_u8(from), vld1q_u8(from + 16)}};
      uint8_t* place = static_cast<uint8_t*>(to) + (j / kRows * panel + (at + r) * kRows + j % kRows * 4) * 2;
      vst1q_u8(place, vqtbl2q_u8(block, first));
      vst1q_u8(place + 16, vqtbl2q_u8(block, second));
    }
}

void read_scores(const float* s, int n, float* plain, int64_t stride) {
  for (int j = 0; j < n; j += 4)
    for (int r = 0; r < kRows; r += 2) {
      const float32x4_t a = vld1q_f32(s + (j / 2 * kPairs + r / 2) * 4),
                        b = vld1q_f32(s + ((j / 2 + 1) * kPairs + r / 2) * 4);
      vst1q_f32(plain + r * stride + j, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
      vst1q_f32(plain + (r + 1) * stride + j, vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
    }
}

void write_scores(const float* plain, int64_t stride, int n, float* s) {
  for (int j = 0; j < n; j += 4)
    for (int r = 0; r < kRows; r += 2) {
      const float32x4_t a = vld1q_f32(plain + r * stride + j), b = vld1q_f32(plain + (r + 1) * stride + j);
      vst1q_f32(s + (j / 2 * kPairs + r / 2) * 4, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
      vst1q_f32(s + ((j / 2 + 1) * kPairs + r / 2) * 4, vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
    }
}

void write_weights(const float* plain, int64_t stride, int n, void* to) {
  uint16_t* p = static_cast<uint16_t*>(to);
  for (int j = 0; j < n; j += 4)
    for (int r = 0; r < kRows; r += 2) {
      const float32x4_t a = vld1q_f32(plain + r * stride + j), b = vld1q_f32(plain + (r + 1) * stride + j);
      const uint16x8_t y =
          joined(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
      vst1q_u16(p + j * kRows + r * 4, y);
    }
}

}  // namespace

const CpuKernels kNeonBf16Kernels[1] = {{.isa = "neon_bf16",
                                         .needs = bit(Feature::neon) | bit(Feature::neon_bf16),
                                         .dtype = DType::bf16,
                                         .rows = kRows,
                                         .keys = kKeys,
                                         .tile = kTile,
                                         .dim_step = 8,
                                         .operand_bytes = sizeof(Bf16),
                                         .scale_in_q = false,
                                         .pack_q = pack_q,
                                         .pack_k = pack_k,
                                         .pack_v = pack_v,
                                         .scores = scores,
                                         .hide = hide,
                                         .weights = weights,
                                         .rescale = rescale,
                                         .accumulate = accumulate,
                                         .unpack = unpack,
                                         .gradients = gradients,
                                         .transpose = transpose,
                                         .read_scores = read_scores,
                                         .write_scores = write_scores,
                                         .write_weights = write_weights,
                                         .widen = widen<Bf16>,
                                         .narrow = narrow<Bf16>}};

}  // namespace attune
