// SPDX-License-Identifier: Apache-2.0
// Steps of the mma.sync forward kernels on one key tile and the 16 rows of a warp, once the scores are computed: the
// online softmax and O += P V. s has one fragment per 8 keys, o one per 8 columns of v.
#pragma once
#include "core/large_logit.h"
#include "machine/sm80/memory.h"

namespace attune::sm80 {

// Upper bound of a weight that differs from 1 only by the rounding of its logit. It fits in f16 and is well above
// 2^lazy.
constexpr float kMostWeight = 4096.f;

// Online softmax: updates references and sums, and replaces s by p. A reference moves only when its maximum grew by
// more than 2^lazy, and o is rescaled only where one moved. The reference is rounded down, so the exponent of the
// largest logit lies between 0 and the reference's last place. For logits of 2^27 and more that exponent can exceed the
// range of a weight, so weights are clamped to kMostWeight, as if their logits were rounded once more. The bits of a
// row still depend on that row alone. `cut`: clamps every weight as it is computed, for kernels without the registers
// to do it afterwards.
template <bool cut = false, int N, int D>
__device__ void admit_tile(Accumulator (&s)[N], Accumulator (&o)[D], float (&ref)[2], float (&sum)[2], float scale,
                           float lazy) {
  float factor[2], total[2] = {};
  bool rare = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; ++n) top = fmaxf(top, fmaxf(s[n].c[2 * half], s[n].c[2 * half + 1]));
    top = __fmul_rd(row_max(top), scale);
    const float before = ref[half];
    const bool grew = top > before + lazy;
    ref[half] = grew ? top : before;
    factor[half] = grew ? exp2_fast(before - top) : 1.f;
    const float shift = ref[half] == -INFINITY ? 0.f : ref[half];
    rare |= grew || (!cut && fabsf(shift) >= kLargeLogit);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const float weight = exp2_fast(fmaf(s[n].c[e], scale, -shift));
        s[n].c[e] = cut ? min_or_nan(weight, kMostWeight) : weight;
        total[half] += s[n].c[e];
      }
  }
  if (__any_sync(~0u, rare)) {
#pragma unroll
    for (int d = 0; d < D; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[d].c[e] *= factor[e / 2];
    if (!cut && __any_sync(~0u, fmaxf(fabsf(ref[0]), fabsf(ref[1])) >= kLargeLogit)) {
      total[0] = total[1] = 0.f;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[n].c[e] = min_or_nan(s[n].c[e], kMostWeight);
          total[e / 2] += s[n].c[e];
        }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) sum[half] = sum[half] * factor[half] + total[half];
}

// admit_tile for M * 16 rows at once. It rescales before computing the weights: one branch, and none after them. This
// is 2 % faster at d128 (H200), but 16 fragments of s, or options, leave too few registers for it. In a row with a
// large reference, the reference is first subtracted from the scores; the usual code then computes weights of at most
// kMostWeight.
template <int M, int N, int D>
__device__ void admit_tiles(Accumulator (&s)[M][N], Accumulator (&o)[M][D], float (&ref)[M][2], float (&sum)[M][2],
                            float scale, float lazy) {
  float before[M][2], shift[M][2];
  bool rare = false;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < N; ++n) top = fmaxf(top, fmaxf(s[m][n].c[2 * half], s[m][n].c[2 * half + 1]));
      top = __fmul_rd(row_max(top), scale);
      before[m][half] = ref[m][half];
      if (top > ref[m][half] + lazy) ref[m][half] = top, rare = true;
      shift[m][half] = ref[m][half] == -INFINITY ? 0.f : ref[m][half];
      rare |= is_large_logit(shift[m][half]);
    }
  if (__any_sync(~0u, rare)) {
    constexpr float kMost = 12.f;  // exponent of kMostWeight
    const float inverse = 1.f / scale;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool moved = ref[m][half] != before[m][half];
        factor[half] = moved ? exp2_fast(before[m][half] - ref[m][half]) : 1.f;
        sum[m][half] *= factor[half];
      }
#pragma unroll
      for (int d = 0; d < D; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][d].c[e] *= factor[e / 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!is_large_logit(shift[m][half])) continue;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e)
            s[m][n].c[e] = min_or_nan(fmaf(s[m][n].c[e], scale, -shift[m][half]), kMost) * inverse;
        shift[m][half] = 0.f;
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = 0.f;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          total += s[m][n].c[e] = exp2_fast(fmaf(s[m][n].c[e], scale, -shift[m][half]));
      sum[m][half] += total;
    }
}

// Tiles of v in shared memory, whose fragments are loaded `Ahead` steps before the products that use them.
template <class T_, class Layout_, int Ahead>
struct ValueTile {
  using T = T_;
  using Layout = Layout_;
  static constexpr int kAhead = Ahead;
};

// o += p v; `first` is the lane's address in the tile.
template <class Values, int N, int D>
__device__ void add_values(Accumulator (&o)[D], const Accumulator (&s)[N], uint32_t first) {
  using T = typename Values::T;
  using Layout = typename Values::Layout;
  constexpr int kAhead = Values::kAhead;
  constexpr int kPairs = D / 2, kSteps = N / 2 * kPairs;
  uint32_t values[kAhead][4];
  const auto load_v = [&](int step) {
    load_matrix4_transposed(values[step % kAhead],
                            Layout::further(first, step % kPairs * 16) + step / kPairs * 16 * 128);
  };
#pragma unroll
  for (int step = 0; step < kAhead; ++step) load_v(step);
  FragmentA weights;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int k = step / kPairs, d = step % kPairs * 2;
    if (d == 0) {
      const Accumulator &low = s[2 * k], &high = s[2 * k + 1];
      weights = {{pack<T>(low.c[0], low.c[1]), pack<T>(low.c[2], low.c[3]), pack<T>(high.c[0], high.c[1]),
                  pack<T>(high.c[2], high.c[3])}};
    }
    const uint32_t(&two)[4] = values[step % kAhead];
    multiply_add<T>(o[d], weights, {two[0], two[1]});
    multiply_add<T>(o[d + 1], weights, {two[2], two[3]});
    if (step + kAhead < kSteps) load_v(step + kAhead);
  }
}

}  // namespace attune::sm80
