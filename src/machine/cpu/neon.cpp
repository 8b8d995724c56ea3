// SPDX-License-Identifier: Apache-2.0
// Arm NEON; arithmetic is f32 for every stored dtype. The register tile is 12 x 8: 24 accumulators, 24 multiply-adds by
// element for 5 loads, and 24 independent chains cover the latency at 4 per cycle. Row sets of 8, 16 or 64 that share
// nothing with others would leave panels of 12 unfilled: for them there is an 8 x 8 tile, 16 chains and 4 loads.
// Queries lie along vector lanes in s, so the softmax needs no horizontal step, and s[key][query] is already the
// operand order of the second product: nothing is transposed after packing.
#include "machine/cpu/neon.h"

#include "machine/cpu/kernels.h"

namespace attune {
namespace {

using namespace neon;

constexpr int kKeys = 8;
// Each panel streams a packed K and V tile from L2 once, so both must fit there (512 KB at d128); s and p of a panel
// stay in L1 (24 KB each).
constexpr int kTile = 512;

template <class T>
const T* row_or_zeros(const void* const* rows, int r, int n) {
  return r < n ? static_cast<const T*>(rows[r]) : reinterpret_cast<const T*>(kZeros);
}

// Packs 4 V rows from `first` on to [dim][4 V]: four dims of all of them at a time, so that whole lines are written.
template <class T, int V>
[[gnu::always_inline]] inline void interleave(const void* const* rows, int first, int n, int dim, float* to,
                                              float scale) {
  const T* x[4 * V];
  for (int a = 0; a < 4 * V; ++a) x[a] = row_or_zeros<T>(rows, first + a, n);
  for (int d = 0; d < dim; d += 4, to += 16 * V)
    unroll<V>([&](auto c) {
      Four four;
      unroll<4>([&](auto a) { four.row[a] = vmulq_n_f32(load4(x[4 * c + a] + d), scale); });
      four = transposed(four);
      unroll<4>([&](auto a) { vst1q_f32(to + 4 * (V * a + c), four.row[a]); });
    });
}

// [n / 8][dim][8]
template <class T>
void pack_k(const void* const* rows, int n, int dim, void* to) {
  for (int j = 0; j < n; j += 8) interleave<T, 2>(rows, j, n, dim, static_cast<float*>(to) + int64_t(j) * dim, 1.f);
}

// [dim / 8][capacity][8]
template <class T>
void pack_v(const void* const* rows, int n, int dim, void* to, int capacity) {
  for (int j = 0; j < (n + 7) / 8 * 8; j += 4) {
    const T* x[4];
    for (int a = 0; a < 4; ++a) x[a] = row_or_zeros<T>(rows, j + a, n);
    float* v = static_cast<float*>(to) + j * 8;
    for (int d = 0; d < dim; d += 8, v += int64_t(8) * capacity)
      unroll<8>([&](auto a) { vst1q_f32(v + 4 * a, load4(x[a / 2] + d + 4 * (a % 2))); });
  }
}

// A panel of V vectors of rows.
template <int V>
struct Panels {
  static constexpr int kRows = 4 * V;

  // [dim][rows]
  template <class T>
  static void pack_q(const void* const* rows, int n, int dim, float scale, void* to) {
    interleave<T, V>(rows, 0, n, dim, static_cast<float*>(to), scale);
  }

  static void scores(const void* q_panel, const void* k_tile, int n, int dim, float* s, float* top) {
    const float* k = static_cast<const float*>(k_tile);
    float32x4_t best[V];
    unroll<V>([&](auto c) { best[c] = minus_inf(); });
    for (int j = 0; j < n; j += 8, s += 8 * kRows) {
      float32x4_t acc[8][V];
      unroll<8 * V>([&](auto i) { acc[i / V][i % V] = vdupq_n_f32(0); });
      const float* q = static_cast<const float*>(q_panel);
#pragma GCC unroll 4
      for (int d = 0; d < dim; ++d, q += kRows, k += 8) {
        const float32x4_t k0 = vld1q_f32(k), k1 = vld1q_f32(k + 4);
        float32x4_t rows[V];
        unroll<V>([&](auto c) { rows[c] = vld1q_f32(q + 4 * c); });
        unroll<8>([&](auto a) {
          constexpr int key = decltype(a)::value;
          const float32x4_t kk = key < 4 ? k0 : k1;
          unroll<V>([&](auto c) { acc[key][c] = vfmaq_laneq_f32(acc[key][c], rows[c], kk, key % 4); });
        });
      }
      unroll<8 * V>([&](auto i) {
        vst1q_f32(s + 4 * i, acc[i / V][i % V]);
        best[i % V] = vmaxq_f32(best[i % V], acc[i / V][i % V]);
      });
    }
    for (int c = 0; c < V; ++c) vst1q_f32(top + 4 * c, best[c]);
  }

  static void hide(float* s, int n, const int* first, const int* last, float* top) {
    for (int c = 0; c < V; ++c) {
      const int32x4_t from = vld1q_s32(first + 4 * c), until = vld1q_s32(last + 4 * c);
      float32x4_t best = minus_inf();
      for (int j = 0; j < n; ++j) {
        float* x = s + j * kRows + 4 * c;
        const int32x4_t at = vdupq_n_s32(j);
        const uint32x4_t seen = vandq_u32(vcgeq_s32(at, from), vcltq_s32(at, until));
        const float32x4_t y = vbslq_f32(seen, vld1q_f32(x), minus_inf());
        vst1q_f32(x, y);
        best = vmaxq_f32(best, y);
      }
      vst1q_f32(top + 4 * c, best);
    }
  }

  static constexpr int kExp = V == 3 ? 6 : 8;  // vectors through exp2 at a time: two keys, or four

  template <bool LargeLogits>
  static void weights_by(const float* s, int n, const float* ref, float* sum, float* p) {
    float32x4_t large_ref[V], total[V];
    Exp2Row row[V];
    unroll<V>([&](auto c) {
      large_ref[c] = finite_ref(vld1q_f32(ref + 4 * c)), total[c] = vld1q_f32(sum + 4 * c);
      row[c] = Exp2Row(LargeLogits ? vdupq_n_f32(0) : large_ref[c]);
    });
    for (int j = 0; j < n; j += kExp / V, s += 4 * kExp, p += 4 * kExp) {
      float32x4_t x[kExp];
      unroll<kExp>([&](auto i) { x[i] = vld1q_f32(s + 4 * i); });
      if constexpr (LargeLogits) unroll<kExp>([&](auto i) { x[i] = vsubq_f32(x[i], large_ref[i % V]); });
      exp2<5>(x, row);
      unroll<kExp>([&](auto i) { vst1q_f32(p + 4 * i, x[i]); });
      unroll<kExp>([&](auto i) { total[i % V] = vaddq_f32(total[i % V], x[i]); });
    }
    for (int c = 0; c < V; ++c) vst1q_f32(sum + 4 * c, total[c]);
  }

  static void weights(const float* s, int n, float, const float* ref, float* sum, void* p) {
    any_large_logit(ref, kRows) ? weights_by<true>(s, n, ref, sum, static_cast<float*>(p))
                        : weights_by<false>(s, n, ref, sum, static_cast<float*>(p));
  }

  // o: [dim / 8][rows][8]
  static void rescale(float* o, int dim, const float* factor) {
    for (int d = 0; d < dim; d += 8)
      for (int r = 0; r < kRows; ++r, o += 8) {
        vst1q_f32(o, vmulq_n_f32(vld1q_f32(o), factor[r]));
        vst1q_f32(o + 4, vmulq_n_f32(vld1q_f32(o + 4), factor[r]));
      }
  }

  static void accumulate_runs(const void* p_panel, const KeyRun* runs, int count, int capacity, int dim, float* o) {
    for (int d = 0; d < dim; d += 8, o += 8 * kRows) {
      float32x4_t acc[kRows][2];
      unroll<2 * kRows>([&](auto a) { acc[a / 2][a % 2] = vld1q_f32(o + 4 * a); });
      const float* p = static_cast<const float*>(p_panel);
      for (const KeyRun* run = runs; run < runs + count; ++run) {
        const float* v = static_cast<const float*>(run->v) + int64_t(d) * capacity + 8 * run->first;
        const float* const end = v + 8 * run->n;
#pragma GCC unroll 4
        for (; v < end; p += kRows, v += 8) {
          float32x4_t rows[V];
          unroll<V>([&](auto c) { rows[c] = vld1q_f32(p + 4 * c); });
          const float32x4_t v0 = vld1q_f32(v), v1 = vld1q_f32(v + 4);
          unroll<kRows>([&](auto a) {
            constexpr int r = decltype(a)::value;
            acc[r][0] = vfmaq_laneq_f32(acc[r][0], v0, rows[r / 4], r % 4);
            acc[r][1] = vfmaq_laneq_f32(acc[r][1], v1, rows[r / 4], r % 4);
          });
        }
      }
      unroll<2 * kRows>([&](auto a) { vst1q_f32(o + 4 * a, acc[a / 2][a % 2]); });
    }
  }
  static void accumulate(const void* p, const void* v, int capacity, int first, int n, int dim, float* o) {
    const KeyRun run{v, first, n};
    accumulate_runs(p, &run, 1, capacity, dim, o);
  }

  static void add_row(const float* x, int dim, int r, float* o) {
    for (int d = 0; d < dim; ++d) o[(d / 8 * kRows + r) * 8 + d % 8] += x[d];
  }

  static void unpack(const float* o, int dim, const float* factor, int n, float* to, int64_t stride) {
    for (int d = 0; d < dim; d += 8, o += 8 * kRows)
      for (int r = 0; r < n; ++r) {
        vst1q_f32(to + r * stride + d, vmulq_n_f32(vld1q_f32(o + r * 8), factor[r]));
        vst1q_f32(to + r * stride + d + 4, vmulq_n_f32(vld1q_f32(o + r * 8 + 4), factor[r]));
      }
  }

  static void add(const float* o, int dim, float factor, int n, float* const* to) {
    for (int r = 0; r < n; ++r)
      for (int d = 0; d < dim; d += 4) {
        const float32x4_t x = vld1q_f32(o + d / 8 * 8 * kRows + r * 8 + d % 8);
        vst1q_f32(to[r] + d, vaddq_f32(vld1q_f32(to[r] + d), vmulq_n_f32(x, factor)));
      }
  }

  static float gradients(const float* s, const float* dp, int n, float, const float* lse, const float* delta,
                         void* p_to, void* ds_to) {
    float *p = static_cast<float*>(p_to), *ds = static_cast<float*>(ds_to);
    const Exp2Row row[1] = {Exp2Row(vdupq_n_f32(0))};
    float32x4_t sum = vdupq_n_f32(0);
    for (int j = 0; j < n; j += kExp / V, s += 4 * kExp, dp += 4 * kExp, p += 4 * kExp, ds += 4 * kExp) {
      float32x4_t x[kExp];
      unroll<kExp>([&](auto i) { x[i] = vsubq_f32(vld1q_f32(s + 4 * i), vdupq_n_f32(lse[j + i / V])); });
      exp2<5>(x, row);
      unroll<kExp>([&](auto i) {
        vst1q_f32(p + 4 * i, x[i]);
        const float32x4_t y = vmulq_f32(x[i], vsubq_f32(vld1q_f32(dp + 4 * i), vdupq_n_f32(delta[j + i / V])));
        vst1q_f32(ds + 4 * i, y);
        sum = vaddq_f32(sum, y);
      });
    }
    return vaddvq_f32(sum);
  }

  // Four queries by four keys at a time; 4 divides the rows, so a block never straddles two panels.
  static void transpose(const void* ds_panel, int n, void* to, int rows, int64_t panel, int at) {
    const float* ds = static_cast<const float*>(ds_panel);
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 4) {
        Four four;
        for (int a = 0; a < 4; ++a) four.row[a] = vld1q_f32(ds + (j + a) * kRows + r);
        four = transposed(four);
        float* block = static_cast<float*>(to) + j / rows * panel + (at + r) * rows + j % rows;
        for (int a = 0; a < 4; ++a) vst1q_f32(block + a * rows, four.row[a]);
      }
  }

  static void read_scores(const float* s, int n, float* plain, int64_t stride) {
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 4) {
        Four four;
        for (int a = 0; a < 4; ++a) four.row[a] = vld1q_f32(s + (j + a) * kRows + r);
        four = transposed(four);
        for (int a = 0; a < 4; ++a) vst1q_f32(plain + (r + a) * stride + j, four.row[a]);
      }
  }

  static void write_scores(const float* plain, int64_t stride, int n, float* s) {
    for (int j = 0; j < n; j += 4)
      for (int r = 0; r < kRows; r += 4) {
        Four four;
        for (int a = 0; a < 4; ++a) four.row[a] = vld1q_f32(plain + (r + a) * stride + j);
        four = transposed(four);
        for (int a = 0; a < 4; ++a) vst1q_f32(s + (j + a) * kRows + r, four.row[a]);
      }
  }
  static void write_weights(const float* plain, int64_t stride, int n, void* p) {
    write_scores(plain, stride, n, static_cast<float*>(p));
  }
};

template <class T, int V>
constexpr CpuKernels kernels(DType dtype) {
  using P = Panels<V>;
  return {.isa = "neon",
          .needs = bit(Feature::neon),
          .dtype = dtype,
          .rows = P::kRows,
          .keys = kKeys,
          .tile = kTile,
          .dim_step = 8,
          .operand_bytes = sizeof(float),
          .scale_in_q = true,
          .pack_q = P::template pack_q<T>,
          .pack_k = pack_k<T>,
          .pack_v = pack_v<T>,
          .scores = P::scores,
          .hide = P::hide,
          .weights = P::weights,
          .rescale = P::rescale,
          .accumulate = P::accumulate,
          .accumulate_runs = P::accumulate_runs,
          .add_row = P::add_row,
          .unpack = P::unpack,
          .add = P::add,
          .row_scores = row_scores<OfFour, T>,
          .row_weights = row_weights,
          .row_accumulate = row_accumulate<OfFour, T>,
          .gradients = P::gradients,
          .transpose = P::transpose,
          .read_scores = P::read_scores,
          .write_scores = P::write_scores,
          .write_weights = P::write_weights,
          .widen = widen<T>,
          .narrow = narrow<T>,
          .finite = finite<T>,
          .dot = dot<T>};
}

}  // namespace

const CpuKernels kNeonKernels[6] = {kernels<float, 3>(DType::f32), kernels<F16, 3>(DType::f16),
                                    kernels<Bf16, 3>(DType::bf16), kernels<float, 2>(DType::f32),
                                    kernels<F16, 2>(DType::f16), kernels<Bf16, 2>(DType::bf16)};

}  // namespace attune
