// Forward attention for Hopper: the softmax of the two rows that a thread holds, in base 2.
#pragma once
#include "machine/sm80/matrix.h"
#include "machine/sm90/wgmma.h"

namespace attune::sm90 {

constexpr float kLargestSum = 4096.f;  // of a thread's share of a row and key tile, before the maximum is raised
constexpr float kNone = -1e38f;        // the maximum of a row that has seen no key

// `max` is that of the row's first key tile, and is raised only where weights of a later one grow too large: most tiles
// need no maximum at all.
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

// What was summed so far is to be multiplied by `alpha`.
__device__ inline void raise_max(const float (&top)[2], Rows& rows, float (&alpha)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float t = fmaxf(sm80::row_max(top[r]) * scale, rows.max[r]);
    alpha[r] = sm80::exp2_fast(rows.max[r] - t);
    rows.max[r] = t, rows.sum[r] *= alpha[r];
  }
}

template <class T, int From, int To, int N>
__device__ void weights(const float (&s)[N], uint32_t (&p)[N / 2], const Rows& rows, float scale, float (&sum)[4]) {
  using sm80::exp2_fast;
#pragma unroll
  for (int n = From; n < To; n += 4) {
    const float a = exp2_fast(fmaf(s[n], scale, -rows.max[0])), b = exp2_fast(fmaf(s[n + 1], scale, -rows.max[0]));
    const float c = exp2_fast(fmaf(s[n + 2], scale, -rows.max[1])), d = exp2_fast(fmaf(s[n + 3], scale, -rows.max[1]));
    p[n / 2] = sm80::pack<T>(a, b), p[n / 2 + 1] = sm80::pack<T>(c, d);
    sum[0] += a, sum[1] += b, sum[2] += c, sum[3] += d;
  }
}

// One key tile. `fresh`: the first of new rows; the old ones go to `done`. product_done() is called in the middle, once:
// all warps of a warpgroup go through the same waits. Returns whether O must be rescaled.
template <class T, int N, class Done>
__device__ bool softmax(const float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, Rows& done, float (&alpha)[2],
                        float scale, bool fresh, Done product_done) {
  constexpr int kHalf = N / 8 * 4;
  float top[2], sum[4] = {};
  if (fresh) {
    done = rows, rows = {{kNone, kNone}, {0.f, 0.f}};
    largest(s, top);
    raise_max(top, rows, alpha, scale);
  }
  weights<T, 0, kHalf>(s, p, rows, scale, sum);
  product_done();
  weights<T, kHalf, N>(s, p, rows, scale, sum);
  // A weight that grew too large for the old maximum: once more, with the true one.
  const bool raised = !fresh && __any_sync(~0u, !(fmaxf(sum[0] + sum[1], sum[2] + sum[3]) <= kLargestSum));
  if (raised) {
    largest(s, top);
    raise_max(top, rows, alpha, scale);
    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
    weights<T, 0, N>(s, p, rows, scale, sum);
  }
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
  return raised;
}

// The same where there are no registers for a second P: scores are overwritten, so the maximum comes first. P may be
// written only after product_done().
template <class T, int N, class Done>
__device__ bool softmax_in_place(float (&s)[N], uint32_t (&p)[N / 2], Rows& rows, Rows& done, float (&alpha)[2],
                                 float scale, bool fresh, Done product_done) {
  using sm80::exp2_fast;
  if (fresh) done = rows, rows = {{kNone, kNone}, {0.f, 0.f}};
  float top[2], sum[4] = {};
  largest(s, top);
  const float over = fmaxf(fmaf(top[0], scale, -rows.max[0]), fmaf(top[1], scale, -rows.max[1]));
  const bool raised = __any_sync(~0u, over > 7.f);
  if (raised) raise_max(top, rows, alpha, scale);
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
  rows.sum[0] += sum[0] + sum[1], rows.sum[1] += sum[2] + sum[3];
  return raised && !fresh;
}

}  // namespace attune::sm90
