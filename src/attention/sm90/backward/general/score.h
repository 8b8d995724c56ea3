// SPDX-License-Identifier: Apache-2.0
// General backward for Hopper: the options, applied to the 32 scores of a 64 x 64 tile that a thread holds. The result
// equals General of core/score.h. A thread has two rows on one side of the tile, and two of every eight on the other.
// `transposed`: the two rows are keys.
#pragma once
#include <type_traits>

#include "attention/sm90/backward/general/common.h"
#include "attention/sm90/backward/score.h"
#include "attention/sm90/forward/score.h"

namespace attune::sm90 {

// For s[n], let c = n / 4 * 8 + n % 2 and r = n / 2 % 2 * 8. It belongs to query `query + r` and key `key + c`;
// transposed, to query `query + c` and key `key + r`. It is visible if c is one of count[n / 2 % 2] from from[n / 2 %
// 2] on.
struct PairSpot {
  int batch, head;
  int query, key;
  int rows, keys;            // of the sequence
  int64_t query_0, key_0;    // positions of query 0 and key 0
  int from[2], count[2];
};

__device__ inline void stand_where_given(const ScoreOptions& x, PairSpot& at) {
  if (!x.positions) return;
  const int64_t* given = x.positions + at.batch * x.position_stride;
  at.query_0 = clamp_position(given[0]), at.key_0 = clamp_position(given[1]);
}

template <bool transposed>
struct PairScore {
  static constexpr int kCount = 32, kChunk = 4;
  const GeneralParams& x;
  uint32_t kept[1];  // one bit per score

  static __device__ constexpr int bit(int n) { return transposed ? n : 8 * (n / 2 % 2 * 2 + n % 2) + n / 4; }

  // Called before the products are complete.
  __device__ void draw_kept(const PairSpot& at) {
    if (!x.score.drop_below) return;
    const Dropout dropout{uint64_t(x.score.seed[0]), uint64_t(x.score.seed[1]), x.score.drop_below};
    const uint32_t stream = uint32_t(at.batch) * uint32_t(x.heads) + uint32_t(at.head);
    const int64_t row = at.query_0 + at.query;
    if constexpr (transposed)
      draw_transposed<kCount>(kept, dropout, stream, row, at.key_0 + at.key - threadIdx.x % 32 / 4);
    else draw<kCount>(kept, dropout, stream, row, at.key_0 + (at.key & ~3));
  }
  // Byte offset of the pair of s[n] in a bias, from the row of the batch and head. Missing pairs read the last one.
  static __device__ int64_t offset(const Tensor& t, const PairSpot& at, int n) {
    const int c = n / 4 * 8 + n % 2, r = n / 2 % 2 * 8;
    const int i = min(at.query + (transposed ? c : r), at.rows - 1),
              j = min(at.key + (transposed ? r : c), at.keys - 1);
    return (t.stride.seq * i + (t.extent.dim == 1 ? 0 : j)) * int(size_of(t.dtype));
  }
  __device__ void load_bias(float (&to)[kChunk], const char* first, const PairSpot& at, int chunk) const {
    const DType type = x.score.bias.dtype;
#pragma unroll
    for (int n = 0; n < kChunk; ++n) {
      const char* from = first + offset(x.score.bias, at, chunk * kChunk + n);
      if (type == DType::f32) to[n] = *reinterpret_cast<const float*>(from);
      else if (type == DType::f16) to[n] = sm80::unpack<F16>(*reinterpret_cast<const uint16_t*>(from)).x;
      else to[n] = sm80::unpack<Bf16>(*reinterpret_cast<const uint16_t*>(from)).x;
    }
  }

  static __device__ bool seen(const PairSpot& at, int n) {
    const int r = n / 2 % 2;
    return uint32_t(n / 4 * 8 + n % 2 - at.from[r]) < uint32_t(at.count[r]);
  }

  struct Weighed {
    float weight;  // before dropout, as if the pair were visible
    float keep;    // factor of dropout
    float slope;   // derivative of the capped score
  };
  // Calls take(whether there is a bias, n, Weighed) for each score and done(chunk) after every four. lse(n): of its
  // row. Overwrites the scores.
  template <class Lse, class Take, class Done>
  __device__ void apply(float (&s)[kCount], const PairSpot& at, Lse lse, Take take, Done done) const {
    if (x.score.cap != 0.f) cap_scores(s, x.score.cap_factor);
    if (x.score.bias.data && at.keys > 0) weigh<true>(s, at, lse, take, done);
    else weigh<false>(s, at, lse, take, done);
  }

 private:
  // A branch per score would cost more than the arithmetic: an option that is not used multiplies by one, or adds zero.
  template <bool biased, class Lse, class Take, class Done>
  __device__ void weigh(const float (&s)[kCount], const PairSpot& at, Lse lse, Take take, Done done) const {
    const bool capped = x.score.cap != 0.f;
    const float scale = capped ? x.score.cap : x.scale2;
    const float slope = x.score.slopes ? -kLog2e * x.score.slopes[at.head * x.score.slope_stride] : 0.f;
    const float ahead = float(at.key_0 + at.key - at.query_0 - at.query);
    const uint32_t bits = x.score.drop_below ? kept[0] : ~0u;
    const char* const bias = biased ? row_address(x.score.bias, at.batch, 0, at.head) : nullptr;
    float now[kChunk] = {}, next[kChunk] = {};
    if constexpr (biased) load_bias(next, bias, at, 0);
#pragma unroll
    for (int chunk = 0; chunk < kCount / kChunk; ++chunk) {
      if constexpr (biased) {
#pragma unroll
        for (int n = 0; n < kChunk; ++n) now[n] = next[n] * kLog2e;
        if (chunk + 1 < kCount / kChunk) load_bias(next, bias, at, chunk + 1);
      }
#pragma unroll
      for (int n = chunk * kChunk; n < (chunk + 1) * kChunk; ++n) {
        const int c = n / 4 * 8 + n % 2, r = n / 2 % 2 * 8;
        const float more = fmaf(fabsf(ahead + float(transposed ? r - c : c - r)), slope, now[n % kChunk] - lse(n));
        const Weighed w{.weight = at_most_one(sm80::exp2_fast(fmaf(s[n], scale, more))),
                        .keep = bits >> bit(n) & 1 ? x.score.kept : 0.f,
                        .slope = capped ? fmaf(-s[n], s[n], 1.f) : 1.f};
        take(std::bool_constant<biased>{}, n, w);
      }
      done(chunk);
    }
  }
};

}  // namespace attune::sm90
