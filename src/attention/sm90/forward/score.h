// SPDX-License-Identifier: Apache-2.0
// Forward attention for Hopper: the options, applied between the products and the softmax to the two rows that a thread
// holds. The result equals General of core/score.h, in an order that suits registers. Each option modifies the scores
// in place, and the remaining factor (scale and log2 e, or the cap) is carried on into the softmax.
#pragma once
#include "attention/sm90/forward/config.h"
#include "core/dropout.h"
#include "core/softmax.h"
#include "machine/sm80/memory.h"
#include "machine/sm90/memory.h"

namespace attune::sm90 {

// Location of a thread's scores: s[n] belongs to row `row` (8 further where n / 2 is odd) and to column `column + n / 4
// * 8 + n % 2` of the sequence.
struct Spot {
  int batch, head;
  int row, column;
  int position;    // of the row, with key 0 at 0
  int rows, keys;  // of the sequence
};

// s = tanh(s * scale / cap), with factor = 2 log2 e * scale / cap: 1 - 2 / (1 + exp(2 x)), with an error of 2^-23. It
// takes five instructions and no extra register. One reciprocal for four scores takes fewer slow instructions, but
// makes long dependency chains.
template <int N>
__device__ void cap_scores(float (&s)[N], float factor) {
#pragma unroll
  for (int n = 0; n < N; ++n) s[n] = fmaf(-2.f, reciprocal_fast(1.f + sm80::exp2_fast(s[n] * factor)), 1.f);
}

// `first`: position of the thread's first key minus that of the row.
template <int N>
__device__ void add_alibi(float (&s)[N], float scale, float slope, int64_t first) {
  const float ahead[2] = {float(first), float(first - 8)};
#pragma unroll
  for (int n = 0; n < N; ++n)
    s[n] = fmaf(s[n], scale, fabsf(ahead[n / 2 % 2] + float(n / 4 * 8 + n % 2)) * slope);
}

// Adds a bias straight from its tensor: in pairs if it is f32 or T, its rows allow that and all keys of the tile exist.
// The first chunk is loaded before the scores are ready, later ones one chunk ahead of their addition.
template <class B, int kChunk>
struct BiasPairs {
  static constexpr int kBytes = sizeof(B);
  template <int chunk>
  static __device__ void load(uint32_t (&word)[2][kChunk], const char* const (&row)[2]) {
#pragma unroll
    for (int n = 0; n < kChunk; n += 2) {
      const char* from = row[n / 2 % 2] + (chunk * kChunk + n) / 4 * 8 * kBytes;
      if constexpr (kBytes == 4) load_global(from, word[chunk % 2][n], word[chunk % 2][n + 1]);
      else load_global(from, word[chunk % 2][n]);
    }
  }
  template <int chunk = 0, int N>
  static __device__ void add(float (&s)[N], float scale, uint32_t (&word)[2][kChunk], const char* const (&row)[2]) {
    if constexpr (chunk + 1 < N / kChunk) load<chunk + 1>(word, row);
#pragma unroll
    for (int n = 0; n < kChunk; n += 2) {
      const uint32_t(&w)[kChunk] = word[chunk % 2];
      float2 two;
      if constexpr (kBytes == 4) two = {__uint_as_float(w[n]), __uint_as_float(w[n + 1])};
      else two = sm80::unpack<B>(w[n]);
      float *x = s + chunk * kChunk + n, *y = x + 1;
      *x = fmaf(two.x, kLog2e, *x * scale), *y = fmaf(two.y, kLog2e, *y * scale);
    }
    if constexpr (chunk + 1 < N / kChunk) add<chunk + 1>(s, scale, word, row);
  }
};

// Handles any dtype, address and broadcast. Missing keys read the last one and are masked later.
template <int N>
__device__ void add_bias_singly(float (&s)[N], float scale, const Tensor& bias, const char* const (&row)[2],
                                const Spot& at) {
  const int size = int(size_of(bias.dtype)), step = bias.extent.dim == 1 ? 0 : size, last = max(at.keys - 1, 0);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const char* from = row[n / 2 % 2] + int64_t(min(at.column + n / 4 * 8 + n % 2, last)) * step;
    float x;
    if (size == 4) {
      x = *reinterpret_cast<const float*>(from);
    } else {
      const uint32_t bits = *reinterpret_cast<const uint16_t*>(from);
      x = bias.dtype == DType::f16 ? sm80::unpack<F16>(bits).x : sm80::unpack<Bf16>(bits).x;
    }
    s[n] = fmaf(x, kLog2e, s[n] * scale);
  }
}

// Draws one bit per score, set if it is kept: a word per 64 columns, with a byte for each of (upper row, even column),
// (upper, odd), (lower, even), (lower, odd). One Philox call serves four adjacent keys, which two lanes share. The even
// lane calls for its upper row, the odd one for its lower row, and they exchange halves. If the position of key 0 is
// not a multiple of four, the four keys need two calls. `row` and `key` are positions: of the thread's first row, and
// of the first of the four keys.
template <int N>
__device__ void draw(uint32_t (&kept)[N / 32], const Dropout& dropout, uint32_t stream, int64_t row, int64_t key) {
  const bool odd = threadIdx.x & 1;
  const int before = int(key & 3);
#pragma unroll
  for (int word = 0; word < N / 32; ++word) {
    uint32_t mine = 0;
#pragma unroll 1
    for (int n = 0; n < 8; ++n) {
      mine = mine >> 1 & 0x7F7F7F7Fu;
#pragma unroll 1
      for (int at = -before; at < 4; at += 4) {
        const Words4 words = dropout.words(stream, row + 8 * odd, key + at + word * 64 + n * 8);
        uint32_t four = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (words.w[k] >= dropout.below) four |= 0x80u << 8 * k;
        mine |= at < 0 ? four >> -8 * at : four << 8 * at;
      }
    }
    const uint32_t theirs = __shfl_xor_sync(~0u, mine, 1);
    kept[word] = odd ? (mine & 0xFFFF0000u) | theirs >> 16 : (mine & 0xFFFFu) | theirs << 16;
  }
}

// The options of one key tile. prepare() runs before its scores are ready, apply() after; apply() returns the remaining
// factor of the scores. drop() runs when they are weights, summed and packed. The location is passed again, not stored:
// products are in flight between the two calls, and registers are few.
template <class T, int N>
struct Score {
  const ScoreOptions& x;
  static constexpr int kChunk = 8;
  uint32_t word[2][kChunk];
  uint32_t kept[N / 32];

  enum class Bias { none, f32, same, singly };
  __device__ Bias bias(const Spot& at) const {
    if (!x.bias.data) return Bias::none;
    if (!x.bias_pairs || at.column - at.column % 8 + 2 * N > at.keys) return Bias::singly;
    return x.bias.dtype == DType::f32 ? Bias::f32 : Bias::same;
  }
  __device__ void bias_rows(const Spot& at, const char* (&row)[2], int bytes) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      row[r] = row_address(x.bias, at.batch, min(at.row + 8 * r, at.rows - 1), at.head) + int64_t(at.column) * bytes;
  }
  struct Stand { int64_t row, key; };  // positions of the thread's first row and of key 0
  __device__ Stand stand(const Spot& at) const {
    if (!x.positions) return {at.position, 0};
    const int64_t* given = x.positions + at.batch * x.position_stride;
    return {clamp_position(given[0]) + at.row, clamp_position(given[1])};
  }
  // `more`: another key tile follows, to the left.
  __device__ void prepare(const Spot& at, int heads, bool more) {
    if (x.drop_below) {
      const Dropout dropout{uint64_t(x.seed[0]), uint64_t(x.seed[1]), x.drop_below};
      const auto [row, key] = stand(at);
      draw<N>(kept, dropout, uint32_t(at.batch) * uint32_t(heads) + uint32_t(at.head), row, key + (at.column & ~3));
    }
    const Bias kind = bias(at);
    if (kind != Bias::f32 && kind != Bias::same) return;
    const int bytes = kind == Bias::f32 ? 4 : 2, tile = 2 * N * bytes;
    const char* row[2];
    bias_rows(at, row, bytes);
    if (kind == Bias::f32) BiasPairs<float, kChunk>::template load<0>(word, row);
    else BiasPairs<T, kChunk>::template load<0>(word, row);
    if (more && at.column % 8 < 4)  // two of the four lanes that share rows
      prefetch_global((at.column % 8 ? row[1] : row[0]) - at.column % 8 * bytes - tile, tile);
  }
  __device__ float apply(float (&s)[N], const Spot& at, float scale, float slope) {
    if (x.cap != 0.f) cap_scores(s, x.cap_factor), scale = x.cap;
    if (slope != 0.f) {
      const auto [row, key] = stand(at);
      add_alibi(s, scale, -slope, key + at.column - row), scale = 1.f;
    }
    const Bias kind = bias(at);
    if (kind == Bias::none) return scale;
    const char* row[2];
    bias_rows(at, row, kind == Bias::singly ? 0 : kind == Bias::f32 ? 4 : 2);
    if (kind == Bias::f32) BiasPairs<float, kChunk>::add(s, scale, word, row);
    else if (kind == Bias::same) BiasPairs<T, kChunk>::add(s, scale, word, row);
    else add_bias_singly(s, scale, x.bias, row, at);
    return 1.f;
  }
  __device__ void drop(uint32_t (&p)[N / 2]) const {
    if (!x.drop_below) return;
#pragma unroll
    for (int n = 0; n < N / 4; ++n) {
      const uint32_t here = kept[n / 8] << (7 - n % 8);
      p[2 * n] &= spread_bits<0>(here), p[2 * n + 1] &= spread_bits<2>(here);
    }
  }
};

}  // namespace attune::sm90
