// Forward attention for Hopper: the softmax of the two rows that a thread holds, in base 2.
#pragma once
#include <cfloat>

#include "machine/sm80/mma.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

constexpr float kLargest = 4096.f;     // weight, and share of a thread in a row and key tile: more raise the maximum
constexpr float kGrown = 7.f;          // in base 2: in place, scores this far over the maximum raise it
constexpr float kNone = -FLT_MAX;      // the maximum of a row that has seen no key

// `max` is that of the row's first key tile, and is raised only where weights of a later one grow too large: most tiles
// need no maximum at all. It is rounded down, and all weights of a row are too large by what it lost: no matter, until
// that is 12 and more in base 2, at maxima over 2^27. What is over kLargest there is kLargest, in every key tile alike:
// weights of scores that are no further apart than a maximum is rounded.
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

// The same where some score is positive, else a negative number: bits of positive numbers are in order, and integers
// have an instruction for three.
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

// What was summed so far is to be multiplied by `alpha`.
__device__ inline void raise_max(const float (&top)[2], Rows& rows, float (&alpha)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float t = fmaxf(__fmul_rd(sm80::row_max(top[r]), scale), rows.max[r]);
    alpha[r] = sm80::exp2_fast(rows.max[r] - t);
    rows.max[r] = t, rows.sum[r] *= alpha[r];
  }
}

// Of a NaN that NaN.
__device__ inline float bounded(float weight) { return weight > kLargest ? kLargest : weight; }

template <class T, int From, int To, bool Bounded = false, int N>
__device__ void weights(const float (&s)[N], uint32_t (&p)[N / 2], const Rows& rows, float scale, float (&sum)[4]) {
  const auto weight = [&](float x, int r) {
    const float w = sm80::exp2_fast(fmaf(x, scale, -rows.max[r]));
    return Bounded ? bounded(w) : w;
  };
#pragma unroll
  for (int n = From; n < To; n += 4) {
    const float a = weight(s[n], 0), b = weight(s[n + 1], 0), c = weight(s[n + 2], 1), d = weight(s[n + 3], 1);
    p[n / 2] = sm80::pack<T>(a, b), p[n / 2 + 1] = sm80::pack<T>(c, d);
    sum[0] += a, sum[1] += b, sum[2] += c, sum[3] += d;
  }
}

// In a warp. Of a NaN in both rows of a thread too; of one row alone fmaxf passes over it.
__device__ inline bool too_large(const float (&sum)[4]) {
  return __any_sync(~0u, !(fmaxf(sum[0] + sum[1], sum[2] + sum[3]) <= kLargest));
}

// Weights of which some are too large, where the scores are gone.
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

// O goes with the sums.
template <int N>
__device__ void rescale(float (&o)[N], const float (&alpha)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n) o[n] *= alpha[n / 2 % 2];
}

// One key tile. `fresh`: the first of new rows. product_done() is called in the middle, once: all warps of a warpgroup
// go through the same waits, and O is whole behind it. Not `upper`: of the keys of the upper half none is seen.
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
  weights<T, 0, kHalf>(s, p, rows, scale, sum);
  product_done();
  if (upper) {
    weights<T, kHalf, N>(s, p, rows, scale, sum);
  } else {
#pragma unroll
    for (int n = kHalf / 2; n < N / 2; ++n) p[n] = 0;
  }
  // A weight that grew too large for the old maximum: once more, with the true one.
  if (too_large(sum)) {
    largest(s, top);
    raise_max(top, rows, alpha, scale);
    if (!fresh) rescale(o, alpha);  // else O is still that of other rows: an infinite score here is not theirs
    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
    weights<T, 0, N, true>(s, p, rows, scale, sum);
  }
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
}

// The same where there are no registers for a second P: scores are overwritten, so the maximum comes first. P may be
// written only after product_done(). Returns whether O must be rescaled before more is added to it: a branch here would
// hold the wait for the products back.
template <class T, int N, class Done>
__device__ bool softmax_in_place(float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, float (&alpha)[2], float scale,
                                 bool fresh, Done product_done) {
  using sm80::exp2_fast;
  if (fresh) rows = {{kNone, kNone}, {0.f, 0.f}};
  float top[2], sum[4] = {};
  bool raised = fresh;
  if (!fresh) {
    // Bits of negative scores say nothing: enough, unless the maximum is so far below zero that one may outgrow it.
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
  pin(s);  // else packing is moved above the wait
#pragma unroll
  for (int n = 0; n < N / 2; ++n) p[n] = sm80::pack<T>(s[2 * n], s[2 * n + 1]);
  if (raised && too_large(sum)) bound<T>(p, sum);
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
  return raised && !fresh;
}

}  // namespace attune::sm90
