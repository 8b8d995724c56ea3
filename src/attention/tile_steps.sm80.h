// What forward kernels of mma.sync do with a tile of keys and the 16 rows of a warp, once its scores are there. s has a
// fragment for every 8 keys, o for every 8 columns of v.
#pragma once
#include "machine/sm80/memory.h"

namespace attune::sm80 {

// The running softmax: references, sums, and p in place of s. A reference moves only when its maximum grew by more than
// 2^lazy, and o is rescaled only where one moved.
template <int N, int D>
__device__ void admit_tile(Accumulator (&s)[N], Accumulator (&o)[D], float (&ref)[2], float (&sum)[2], float scale,
                           float lazy) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; ++n) top = fmaxf(top, fmaxf(s[n].c[2 * half], s[n].c[2 * half + 1]));
    top = row_max(top) * scale;
    const float before = ref[half];
    const bool grew = top > before + lazy;
    ref[half] = grew ? top : before;
    factor[half] = grew ? exp2_fast(before - top) : 1.f;
    const float shift = ref[half] == -INFINITY ? 0.f : ref[half];
    float total = 0.f;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s[n].c[e] = exp2_fast(fmaf(s[n].c[e], scale, -shift));
        total += s[n].c[e];
      }
    sum[half] = sum[half] * factor[half] + total;
  }
  if (__any_sync(~0u, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
    for (int d = 0; d < D; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[d].c[e] *= factor[e / 2];
  }
}

// o += p v, fragments of v running kAhead loads ahead of the products that use them; `first` is the lane's own.
template <class T, class Layout, int kAhead, int N, int D>
__device__ void add_values(Accumulator (&o)[D], const Accumulator (&s)[N], uint32_t first) {
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
