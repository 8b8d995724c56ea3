// SPDX-License-Identifier: Apache-2.0
// Score options on a tile of scores, for the Forward kernels. Each option is one pass over all scores of a thread, so
// branches stand outside the score loop. Philox is compiled once instead of once per weight of a thread, which would be
// most of the kernel.
#pragma once
#include "attention/sm80/forward/place.h"
#include "core/score.h"
#include "machine/sm80/mma.h"

namespace attune::sm80 {

// Calls change(score, fragment, half, column offset from the thread's first) for every score of a thread.
template <int M, int N, class Change>
__device__ void change_scores(Accumulator (&s)[M][N], Change change) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < 2 * N; ++n) change(s[m][n / 2].c[2 * half + n % 2], m, half, n / 2 * 8 + n % 2);
}

// Out-of-range positions read a valid address and are masked later.
template <class B, class F, int M, int N>
__device__ void add_bias(const F& f, Accumulator (&s)[M][N], Tile t, const General& score) {
  const int step = score.bias->extent.dim == 1 ? 0 : 1, last = max(t.last - 1, 0), column = t.first + f.lane % 4 * 2;
  const B* row[M][2];
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    const int i = f.position(f.at.first + min(f.row_of(r / 2, r % 2), f.at.rows - 1));
    row[r / 2][r % 2] = reinterpret_cast<const B*>(row_address(*score.bias, score.batch, i, score.head));
  }
  change_scores(s, [&](float& y, int m, int half, int n) {
    y = fmaf(float(row[m][half][min(column + n, last) * step]), kLog2e, y);
  });
}

// Like General::logit, but in base 2 already here: at logits of 10^8, a factor in the exponent's fma would move the
// largest weight of a row away from 1.
template <class F, int M, int N>
__device__ void apply_options(const F& f, Accumulator (&s)[M][N], Tile t, const General& score) {
  if (score.softcap > 0.f) {
    const float cap = score.softcap, scale = score.scale;
    change_scores(s, [&](float& y, int, int, int) { y = cap * kLog2e * tanhf(y * scale / cap); });
  } else {
    const float scale = score.scale * kLog2e;
    change_scores(s, [&](float& y, int, int, int) { y *= scale; });
  }
  if (score.bias) {
    switch (score.bias->dtype) {
      case DType::f64: add_bias<double>(f, s, t, score); break;
      case DType::f32: add_bias<float>(f, s, t, score); break;
      case DType::f16: add_bias<F16>(f, s, t, score); break;
      default: add_bias<Bf16>(f, s, t, score);
    }
  }
  if (score.block_bias) {
    const float bias = score.block_bias[score.entry] * kLog2e;
    change_scores(s, [&](float& y, int, int, int) { y += bias; });
  }
  if (score.slope != 0.f) {
    const int column = t.first + f.lane % 4 * 2;
    const float slope = score.slope * kLog2e;
    change_scores(s, [&](float& y, int m, int half, int n) {
      y -= slope * fabsf(float(score.band.ahead(f.position(f.at.first + f.row_of(m, half)), column + n)));
    });
  }
}

// Dropout mask of a thread's weights in the row of query i: bit n is set if key j + n / 2 * 8 + n % 2 is kept.
__device__ inline uint64_t kept_bits(const General& score, int i, int j, int count) {
  uint64_t bits = 0;
  Words4 words{};
  int64_t four = INT64_MIN;  // group of four keys that share a Philox call
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    const int64_t k = score.band.k_position(j + n / 2 * 8 + n % 2);
    if (k >> 2 != four) words = score.dropout.words(score.stream, score.band.q_position(i), k), four = k >> 2;
    const uint32_t low = k % 2 ? words.w[1] : words.w[0], high = k % 2 ? words.w[3] : words.w[2];
    bits |= uint64_t((k & 2 ? high : low) >= score.dropout.below) << n;
  }
  return bits;
}

template <class F, int M, int N>
__device__ void drop_weights(const F& f, Accumulator (&s)[M][N], Tile t, const General& score) {
  static_assert(4 * M * N <= 64);
  uint64_t bits = 0;
#pragma unroll 1
  for (int r = 0; r < 2 * M; ++r)
    bits |= kept_bits(score, f.position(f.at.first + f.row_of(r / 2, r % 2)), t.first + f.lane % 4 * 2, 2 * N)
            << r * 2 * N;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[m][n].c[e] *= bits >> ((2 * m + e / 2) * 2 * N + 2 * n + e % 2) & 1 ? score.dropout.kept : 0.f;
}

}  // namespace attune::sm80
