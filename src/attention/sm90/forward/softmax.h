// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: the online softmax of the two rows that a thread holds, in base 2. One version keeps
// the scores and rarely needs a maximum; the other overwrites them to save registers.
#pragma once
#include <cfloat>

#include "machine/sm80/mma.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

constexpr float kLargest = 4096.f;     // limit of a weight and of a thread's sum per row and key tile; more raises max
constexpr float kGrown = 7.f;          // in base 2: in place, scores this far above the maximum raise it
constexpr float kNone = -FLT_MAX;      // maximum of a row that has seen no key

// `max` is the maximum of the row's first key tile. It is raised only if weights of a later tile grow too large, so
// most tiles need no maximum at all. It is rounded down, and all weights of a row are too large by what it lost. That
// does not matter until the loss is 12 or more in base 2, at maxima over 2^27. There, weights over kLargest become
// kLargest, in every key tile alike: their scores are no further apart than the rounding of a maximum.
struct Rows { float max[2], sum[2]; };

template <int N>
__device__ void largest(const float (&s)[N], float (&top)[2]) {
  float a[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
  for (int n = 4; n < N; n += 4) {
    a[0][0] = fmaxf(a[0][0], s[n]), a[0][1] = fmaxf(a[0][1], s[n + 1]);
    a[1][0] = fmaxf(a[1][0], s[n + 2]), a[1][1] = fmaxf(a[1][1], s[n + 3]);
  }
  top[0] = fmaxf(a[0][0], a[0][1]), top[1] = fmaxf(a[1][0], a[1][1]);
}

// The same if some score is positive, otherwise a negative number. The bits of positive floats are ordered like
// integers, which have an instruction for three operands.
template <int N>
__device__ void largest_bits(const float (&s)[N], float (&top)[2]) {
  const auto bits = [&](int n) { return __float_as_int(s[n]); };
#pragma unroll
  for (int r = 0; r < 4; r += 2) {
    int a = bits(r), b = bits(r + 4);
    a = max(a, bits(r + 1)), b = max(b, bits(r + 5));
#pragma unroll
    for (int n = 8 + r; n < N; n += 8)
      a = __vimax3_s32(a, bits(n), bits(n + 1)), b = __vimax3_s32(b, bits(n + 4), bits(n + 5));
    top[r / 2] = __int_as_float(max(a, b));
  }
}

// Raises the maximum to `top`. The sums so far must be multiplied by `alpha`.
__device__ inline void raise_max(const float (&top)[2], Rows& rows, float (&alpha)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float t = fmaxf(__fmul_rd(sm80::row_max(top[r]), scale), rows.max[r]);
    alpha[r] = t > rows.max[r] ? sm80::exp2_fast(rows.max[r] - t) : 1.f;  // 1 even if both are infinite
    rows.max[r] = t, rows.sum[r] *= alpha[r];
  }
}

// Propagates NaN.
__device__ inline float bounded(float weight) { return weight > kLargest ? kLargest : weight; }

struct ScoreRange { int from, to; };  // of a thread's scores: multiples of four

template <class T, ScoreRange Range, bool Bounded = false, int N>
__device__ void weights(const float (&s)[N], uint32_t (&p)[N / 2], const Rows& rows, float scale, float (&sum)[4]) {
  constexpr int kFrom = Range.from, kTo = Range.to;
  const auto weight = [&](float x, int r) {
    const float w = sm80::exp2_fast(fmaf(x, scale, -rows.max[r]));
    return Bounded ? bounded(w) : w;
  };
#pragma unroll
  for (int n = kFrom; n < kTo; n += 4) {
    const float a = weight(s[n], 0), b = weight(s[n + 1], 0), c = weight(s[n + 2], 1), d = weight(s[n + 3], 1);
    p[n / 2] = sm80::pack<T>(a, b), p[n / 2 + 1] = sm80::pack<T>(c, d);
    sum[0] += a, sum[1] += b, sum[2] += c, sum[3] += d;
  }
}

// True if any lane of the warp has a sum over kLargest, or NaN in both rows. fmaxf ignores a NaN in one row alone.
__device__ inline bool too_large(const float (&sum)[4]) {
  return __any_sync(~0u, !(fmaxf(sum[0] + sum[1], sum[2] + sum[3]) <= kLargest));
}

// Bounds weights that are too large, after the scores are gone.
template <class T, int N>
__device__ void bound(uint32_t (&p)[N], float (&sum)[4]) {
  sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 two = sm80::unpack<T>(p[n]);
    const float a = bounded(two.x), b = bounded(two.y);
    p[n] = sm80::pack<T>(a, b);
    sum[n % 2 * 2] += a, sum[n % 2 * 2 + 1] += b;
  }
}

// O is rescaled along with the sums.
template <int N>
__device__ void rescale(float (&o)[N], const float (&alpha)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n) o[n] *= alpha[n / 2 % 2];
}

// One key tile. `fresh`: the first one of new rows. product_done() is called once, in the middle: all warps of a
// warpgroup go through the same waits, and O is complete after it. `upper` is false if no key of the upper half is
// seen.
template <class T, int N, int M, class Done>
__device__ void softmax(const float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, float (&o)[M], float scale, bool fresh,
                        Done product_done, bool upper = true) {
  constexpr int kHalf = N / 8 * 4;
  float top[2], alpha[2], sum[4] = {};
  if (fresh) {
    rows = {{kNone, kNone}, {0.f, 0.f}};
    largest(s, top);
    raise_max(top, rows, alpha, scale);
  }
  weights<T, ScoreRange{0, kHalf}>(s, p, rows, scale, sum);
  product_done();
  if (upper) {
    weights<T, ScoreRange{kHalf, N}>(s, p, rows, scale, sum);
  } else {
#pragma unroll
    for (int n = kHalf / 2; n < N / 2; ++n) p[n] = 0;
  }
  // A weight is too large for the old maximum: repeat with the true one.
  if (too_large(sum)) {
    largest(s, top);
    raise_max(top, rows, alpha, scale);
    rescale(o, alpha);  // by 1 if `fresh`: the maximum is the true one already, and O still belongs to other rows
    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
    weights<T, ScoreRange{0, N}, true>(s, p, rows, scale, sum);
  }
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
}

// The same without registers for a second P: scores are overwritten, so the maximum comes first. P may be written only
// after product_done(). Returns whether O must be rescaled before the next sum: a branch here would delay the wait for
// the products.
template <class T, int N, class Done>
__device__ bool softmax_in_place(float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, float (&alpha)[2], float scale,
                                 bool fresh, Done product_done) {
  using sm80::exp2_fast;
  if (fresh) rows = {{kNone, kNone}, {0.f, 0.f}};
  float top[2], sum[4] = {};
  bool raised = fresh;
  if (!fresh) {
    // The bits of negative scores are not ordered. That suffices, unless the maximum is so far below zero that a
    // negative score may outgrow it.
    largest_bits(s, top);
    const float over = fmaxf(fmaf(top[0], scale, -rows.max[0]), fmaf(top[1], scale, -rows.max[1]));
    raised = __any_sync(~0u, over > kGrown || fminf(rows.max[0], rows.max[1]) < -kGrown);
  }
  if (raised) {
    largest(s, top);
    raise_max(top, rows, alpha, scale);
  }
#pragma unroll
  for (int n = 0; n < N; n += 4) {
    s[n] = exp2_fast(fmaf(s[n], scale, -rows.max[0])), s[n + 1] = exp2_fast(fmaf(s[n + 1], scale, -rows.max[0]));
    s[n + 2] = exp2_fast(fmaf(s[n + 2], scale, -rows.max[1]));
    s[n + 3] = exp2_fast(fmaf(s[n + 3], scale, -rows.max[1]));
    sum[0] += s[n], sum[1] += s[n + 1], sum[2] += s[n + 2], sum[3] += s[n + 3];
  }
  product_done();
  pin(s);  // else packing moves above the wait
#pragma unroll
  for (int n = 0; n < N / 2; ++n) p[n] = sm80::pack<T>(s[2 * n], s[2 * n + 1]);
  if (raised && too_large(sum)) bound<T>(p, sum);
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
  return raised && !fresh;
}

}  // namespace attune::sm90
