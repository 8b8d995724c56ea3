// SPDX-License-Identifier: Apache-2.0
// Gradients of a thread's pairs for logits with options. Each option is one pass over all pairs, so branches stand
// outside the pair loop, and Philox is compiled once (as in sm80/forward/options.h).
#pragma once
#include "attention/gpu/backward_pre_post.h"

namespace attune::sm80 {

// Calls f(fragment, tile of 8 columns, element) for every pair of a thread.
template <int M, int N, class F>
__device__ void each_pair(F f) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(m, n, e);
}

// `Pairs` maps each (m, n, e) to its query i and key j, both inside the sequence or hidden, and holds the last of each.
template <class B, class Pairs, int M, int N>
__device__ void add_bias(const Pairs& at, Accumulator (&to)[M][N], const General& score) {
  const Tensor& t = *score.bias;
  const B* first = reinterpret_cast<const B*>(row_address(t, score.batch, 0, score.head));
  const int step = t.extent.dim == 1 ? 0 : 1;
  each_pair<M, N>([&](int m, int n, int e) {  // out-of-range pairs read a valid address
    to[m][n].c[e] += float(first[min(at.i(m, n, e), at.last_i) * t.stride.seq + min(at.j(m, n, e), at.last_j) * step]);
  });
}

// Bit m * 4 N + n * 4 + e is set if dropout keeps the weight.
template <int M, int N, class Pairs>
__device__ uint64_t kept_pairs(const Pairs& at, const General& score) {
  static_assert(M * N * 4 <= 64);
  uint64_t bits = 0;
  Words4 words{};
  int64_t query = INT64_MIN, four = INT64_MIN;  // four keys of one query share a Philox call
#pragma unroll 1
  for (int c = 0; c < M * N * 4; ++c) {
    const int m = c / (N * 4), n = c / 4 % N, e = c % 4;
    const int64_t q = score.band.q_position(at.i(m, n, e)), k = score.band.k_position(at.j(m, n, e));
    if (q != query || k >> 2 != four) words = score.dropout.words(score.stream, q, k), query = q, four = k >> 2;
    const uint32_t low = k % 2 ? words.w[1] : words.w[0], high = k % 2 ? words.w[3] : words.w[2];
    bits |= uint64_t((k & 2 ? high : low) >= score.dropout.below) << c;
  }
  return bits;
}

// Replaces dot products by the weights that multiply dO, and dP by the scaled dS. Adds to the gradient of a bias. For
// block_bias it returns this thread's part of the sum instead.
template <class Pairs, int M, int N>
__device__ float differentiate_pairs(const Pairs& at, const DenseArgs& a, const General& score, Kept kept,
                                     Accumulator (&s)[M][N], Accumulator (&dp)[M][N]) {
  Accumulator weight[M][N];  // holds logits first
  const float block_bias = score.block_bias ? score.block_bias[score.entry] : 0.f;
  each_pair<M, N>([&](int m, int n, int e) { weight[m][n].c[e] = block_bias; });
  if (score.bias) {
    switch (score.bias->dtype) {
      case DType::f64: add_bias<double>(at, weight, score); break;
      case DType::f32: add_bias<float>(at, weight, score); break;
      case DType::f16: add_bias<F16>(at, weight, score); break;
      default: add_bias<Bf16>(at, weight, score);
    }
  }
  if (score.slope != 0.f)
    each_pair<M, N>([&](int m, int n, int e) {
      weight[m][n].c[e] -= score.slope * fabsf(float(score.band.ahead(at.i(m, n, e), at.j(m, n, e))));
    });
  const bool capped = score.softcap > 0.f;
  if (capped) {
    each_pair<M, N>([&](int m, int n, int e) {
      float& tanh = s[m][n].c[e];
      tanh = tanhf(tanh * score.scale / score.softcap), weight[m][n].c[e] += score.softcap * tanh;
    });
  } else {
    each_pair<M, N>([&](int m, int n, int e) { weight[m][n].c[e] += s[m][n].c[e] * score.scale; });
  }
  const uint64_t bits = score.dropout.below ? kept_pairs<M, N>(at, score) : ~uint64_t(0);
  float d_block = 0.f;
  each_pair<M, N>([&](int m, int n, int e) {
    const float2 row = at.row(m, n, e);
    const bool there = !at.hidden(m, n, e) && row.x != INFINITY;
    const float keep = bits >> (m * 4 * N + n * 4 + e) & 1 ? score.dropout.kept : 0.f;
    const float w = weight_of_large_logit(exp2_fast(weight[m][n].c[e] * kLog2e - row.x), row.x);
    const float ds = there ? w * fmaf(keep * kept.in, dp[m][n].c[e], -row.y) : 0.f;
    weight[m][n].c[e] = there ? w * keep : 0.f, dp[m][n].c[e] = ds, d_block += ds * kept.out;
  });
  if (score.bias && a.given(Role::d_bias)) {
    const Tensor& t = a[Role::d_bias];
    float* first = reinterpret_cast<float*>(row_address(t, score.batch, 0, score.head));
    const int step = t.extent.dim == 1 ? 0 : 1;
    each_pair<M, N>([&](int m, int n, int e) {
      if (!at.hidden(m, n, e))
        atomicAdd(first + at.i(m, n, e) * t.stride.seq + at.j(m, n, e) * step, dp[m][n].c[e] * kept.out);
    });
  }
  if (capped)
    each_pair<M, N>([&](int m, int n, int e) { dp[m][n].c[e] *= 1.f - s[m][n].c[e] * s[m][n].c[e]; });
  each_pair<M, N>([&](int m, int n, int e) { s[m][n].c[e] = weight[m][n].c[e]; });
  return d_block;
}

}  // namespace attune::sm80
