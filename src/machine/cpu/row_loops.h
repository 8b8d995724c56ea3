// SPDX-License-Identifier: Apache-2.0
// Products of up to four rows with keys as they lie in memory: each key is loaded once, and nothing is packed. An
// instruction set is a type W with
//   F, kLanes                        a vector of floats, and its lanes; 8 is a multiple of them
//   zero(), load(const T*), store(float*, F), broadcast(const float*), fma(a, b, c)
//   sums(const F (&x)[4], float*)    the sum of the lanes of each, stored together
// Everything has internal linkage (x86.h says why).
#pragma once
#include <cstdint>

namespace attune {
namespace {

constexpr int kKeysAhead = 6;  // prefetched: rows of a key lie apart, which the hardware does not foresee

template <class W, class T, int R>
struct RowLoops {
  using F = typename W::F;

  [[gnu::always_inline]] static inline void fetch(const void* row, int dim) {
    for (int at = 0; at < dim * int(sizeof(T)); at += 64) __builtin_prefetch(static_cast<const char*>(row) + at);
  }

  // N keys: every dot product has its own vector, summed over lanes in the same order whatever its neighbours.
  template <int N>
  [[gnu::always_inline]] static inline void dots(const float* q, const void* const* k, int dim, float* s, int stride) {
    constexpr int kAll = (R * N + 3) / 4 * 4;
    F acc[kAll];
    for (F& x : acc) x = W::zero();
    for (int d = 0; d < dim; d += W::kLanes) {
      F x[N];
      for (int n = 0; n < N; ++n) x[n] = W::load(static_cast<const T*>(k[n]) + d);
      for (int r = 0; r < R; ++r) {
        const F y = W::load(q + r * dim + d);
        for (int n = 0; n < N; ++n) acc[r * N + n] = W::fma(y, x[n], acc[r * N + n]);
      }
    }
    float sum[kAll];
    for (int i = 0; i < kAll; i += 4) {
      const F four[4] = {acc[i], acc[i + 1], acc[i + 2], acc[i + 3]};
      W::sums(four, sum + i);
    }
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) s[r * stride + n] = sum[r * N + n];
  }
  static void scores(const float* q, const void* const* k, int n, int dim, float* s, int stride) {
    constexpr int kMany = R <= 2 ? 8 / R : 2;
    int j = 0;
    for (; j + kMany <= n; j += kMany) {
      for (int a = 0; a < kMany; ++a)
        if (j + kKeysAhead + a < n) fetch(k[j + kKeysAhead + a], dim);
      dots<kMany>(q, k + j, dim, s + j, stride);
    }
    for (; j < n; ++j) dots<1>(q, k + j, dim, s + j, stride);
  }

  // C vectors of dims from d on.
  template <int C>
  [[gnu::always_inline]] static inline void add(const float* p, int stride, const void* const* v, int n, int dim, int d,
                                                float* o) {
    F acc[R][C];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) acc[r][c] = W::load(o + r * dim + d + c * W::kLanes);
    for (int j = 0; j < n; ++j) {
      if (d == 0 && j + kKeysAhead < n) fetch(v[j + kKeysAhead], dim);
      F x[C];
      for (int c = 0; c < C; ++c) x[c] = W::load(static_cast<const T*>(v[j]) + d + c * W::kLanes);
      for (int r = 0; r < R; ++r) {
        const F w = W::broadcast(p + r * stride + j);
        for (int c = 0; c < C; ++c) acc[r][c] = W::fma(w, x[c], acc[r][c]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) W::store(o + r * dim + d + c * W::kLanes, acc[r][c]);
  }
  static void accumulate(const float* p, int stride, const void* const* v, int n, int dim, float* o) {
    constexpr int kMany = R <= 2 ? 8 / R : 2;
    int d = 0;
    for (; d + kMany * W::kLanes <= dim; d += kMany * W::kLanes) add<kMany>(p, stride, v, n, dim, d, o);
    for (; d < dim; d += W::kLanes) add<1>(p, stride, v, n, dim, d, o);
  }
};

template <class W, class T>
void row_scores(const float* q, int rows, const void* const* k, int n, int dim, float* s, int stride) {
  switch (rows) {
    case 1: return RowLoops<W, T, 1>::scores(q, k, n, dim, s, stride);
    case 2: return RowLoops<W, T, 2>::scores(q, k, n, dim, s, stride);
    case 3: return RowLoops<W, T, 3>::scores(q, k, n, dim, s, stride);
    default: return RowLoops<W, T, 4>::scores(q, k, n, dim, s, stride);
  }
}
template <class W, class T>
void row_accumulate(const float* p, int rows, int stride, const void* const* v, int n, int dim, float* o) {
  switch (rows) {
    case 1: return RowLoops<W, T, 1>::accumulate(p, stride, v, n, dim, o);
    case 2: return RowLoops<W, T, 2>::accumulate(p, stride, v, n, dim, o);
    case 3: return RowLoops<W, T, 3>::accumulate(p, stride, v, n, dim, o);
    default: return RowLoops<W, T, 4>::accumulate(p, stride, v, n, dim, o);
  }
}

}  // namespace
}  // namespace attune
