// SPDX-License-Identifier: Apache-2.0
// Backward attention for Hopper: the options, applied between the products and the sums to the scores that a thread
// holds. The result equals General of core/score.h. Scores are transposed: a thread has two keys, lane / 4 and 8
// further, and two of every eight queries. Each pair is processed at once, in one pass: the logit, its weight, dS and
// the gradient of a bias.
#pragma once
#include "attention/sm90/backward/large_logits.h"
#include "attention/sm90/backward/config.h"
#include "core/dropout.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/memory.h"

namespace attune::sm90 {

// Location of the scores: s[n] belongs to query `query + n / 4 * 8 + n % 2` and to key `key`, 8 further where n / 2 is
// odd. Queries from from[n / 2 % 2] up to and including last[n / 2 % 2] see it.
struct TransposedSpot {
  int batch, head;
  int query, key;
  int rows, keys;  // of the sequence
  int from[2], last[2];
  int64_t stand;   // position of key 0 minus that of query 0
};

// Draws one bit per score, set if it is kept, in the order of the scores. One Philox call serves four adjacent keys,
// which four lanes have. Of four scores, each lane calls for one, and they exchange bits. If the position of key 0 is
// not a multiple of four, the four keys need two calls. `row` and `key` are positions: of the thread's first query, and
// of the warp's first key.
template <int N>
__device__ void draw_transposed(uint32_t (&kept)[N / 32], const Dropout& dropout, uint32_t stream, int64_t row,
                            int64_t key) {
  const int lane = threadIdx.x % 32, mine = lane / 4 % 4, first = lane & 0x13;  // of the four lanes
  const int64_t four = key + mine / 2 * 8 + lane / 16 * 4;
  const int before = int(four & 3);
#pragma unroll
  for (int part = 0; part < N / 32; ++part) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int n = 0; n < 8; ++n) {
      uint32_t drawn = 0;
#pragma unroll 1
      for (int at = -before; at < 4; at += 4) {
        const Words4 words = dropout.words(stream, row + mine % 2 + part * 64 + n * 8, four + at);
        uint32_t some = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (words.w[k] >= dropout.below) some |= 1u << k;
        drawn |= at < 0 ? some >> -at : some << at;
      }
      bits >>= 4;
#pragma unroll
      for (int k = 0; k < 4; ++k) bits |= (__shfl_sync(~0u, drawn, first + 4 * k) >> mine & 1) << (28 + k);
    }
    kept[part] = bits;
  }
}

template <int N>
struct TransposedScore {
  const TabledParams& x;
  static constexpr int kChunk = 4;  // scores whose bias is loaded at once
  uint32_t kept[N / 32];

  __device__ void prepare(const TransposedSpot& at) {
    if (!x.score.drop_below) return;
    const Dropout dropout{uint64_t(x.score.seed[0]), uint64_t(x.score.seed[1]), x.score.drop_below};
    int64_t row = at.query - at.stand, key = at.key - threadIdx.x % 32 / 4;
    if (x.score.positions) {
      const int64_t* given = x.score.positions + at.batch * x.score.position_stride;
      row = clamp_position(given[0]) + at.query, key += clamp_position(given[1]);
    }
    draw_transposed<N>(kept, dropout, uint32_t(at.batch) * uint32_t(x.heads) + uint32_t(at.head), row, key);
  }

  // Byte offset of the pair of s[n] in a bias, from the row of the batch and head. Missing pairs read the last one.
  static __device__ int64_t offset(const Tensor& t, const TransposedSpot& at, int n) {
    const int size = int(size_of(t.dtype));
    const int i = min(at.query + n / 4 * 8 + n % 2, at.rows - 1), j = min(at.key + n / 2 % 2 * 8, at.keys - 1);
    return (t.stride.seq * i + (t.extent.dim == 1 ? 0 : j)) * size;
  }
  __device__ void load_bias(float (&to)[kChunk], const char* first, const TransposedSpot& at, int chunk) const {
    const DType type = x.score.bias.dtype;
#pragma unroll
    for (int n = 0; n < kChunk; ++n) {
      const char* from = first + offset(x.score.bias, at, chunk * kChunk + n);
      if (type == DType::f32) to[n] = *reinterpret_cast<const float*>(from);
      else if (type == DType::f16) to[n] = sm80::unpack<F16>(*reinterpret_cast<const uint16_t*>(from)).x;
      else to[n] = sm80::unpack<Bf16>(*reinterpret_cast<const uint16_t*>(from)).x;
    }
  }

  // Scores become the weights that multiply dO, and dP becomes dS. `stats(i)`: of queries 8 i and the next, among the
  // thread's two, as in BackwardConsumer.
  template <class Stats>
  __device__ void apply(float (&s)[N], float (&dp)[N], const TransposedSpot& at, Stats stats) const {
    const bool capped = x.score.cap != 0.f, drops = x.score.drop_below, biased = x.score.bias.data;
    const float scale = capped ? x.score.cap : x.scale2;
    const float slope = x.score.slopes ? -kLog2e * x.score.slopes[at.head * x.score.slope_stride] : 0.f;
    // Position of the thread's first key minus that of its first query.
    const float ahead = float(at.key - at.query + at.stand);
    const char* const bias = biased ? row_address(x.score.bias, at.batch, 0, at.head) : nullptr;
    char* const d_bias = x.d_bias.data ? row_address(x.d_bias, at.batch, 0, at.head) : nullptr;
    float now[kChunk] = {}, next[kChunk] = {};
    if (biased) load_bias(next, bias, at, 0);
#pragma unroll
    for (int chunk = 0; chunk < N / kChunk; ++chunk) {
#pragma unroll
      for (int n = 0; n < kChunk; ++n) now[n] = next[n];
      if (biased && chunk + 1 < N / kChunk) load_bias(next, bias, at, chunk + 1);
      if (capped)
#pragma unroll
        for (int n = chunk * kChunk; n < (chunk + 1) * kChunk; ++n)
          s[n] = fmaf(-2.f, reciprocal_fast(1.f + sm80::exp2_fast(s[n] * x.score.cap_factor)), 1.f);
#pragma unroll
      for (int n = chunk * kChunk; n < (chunk + 1) * kChunk; ++n) {
        const float4 two = stats(n / 4);
        const int c = n / 4 * 8 + n % 2, r = n / 2 % 2;
        const float lse = n % 2 ? two.z : two.x, delta = n % 2 ? two.w : two.y;
        const float more = fmaf(now[n % kChunk], kLog2e, slope * fabsf(ahead + float(8 * r - c)));
        const bool seen = c >= at.from[r] && c <= at.last[r] && lse != INFINITY;
        const float weight = seen ? at_most_one(sm80::exp2_fast(fmaf(s[n], scale, more) - lse)) : 0.f;
        const float keep = !drops ? 1.f : kept[n / 32] >> n % 32 & 1 ? x.score.kept : 0.f;
        const float d_logit = seen ? weight * fmaf(keep * x.kept, dp[n], -delta) : 0.f;
        if (d_bias && seen)
          atomicAdd(reinterpret_cast<float*>(d_bias + offset(x.d_bias, at, n)), d_logit * x.kept_out);
        dp[n] = capped ? d_logit * fmaf(-s[n], s[n], 1.f) : d_logit;
        s[n] = weight * keep;
      }
    }
  }
};

}  // namespace attune::sm90
