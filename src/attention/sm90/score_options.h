// SPDX-License-Identifier: Apache-2.0
// Options that change scores, as the forward and backward Hopper kernels receive them: a plain struct, and the function
// that fills it from a problem and its arguments.
#pragma once
#include "core/dropout.h"
#include "core/score.h"

namespace attune::sm90 {

// Parameters of the options. All members zero: scores stay unchanged.
struct ScoreOptions {
  float cap, cap_factor;     // softcap: log2 e * cap, and 2 log2 e * scale / cap
  const float* slopes;       // ALiBi slopes by query head; null: none
  int64_t slope_stride;
  Tensor bias;               // extent 1 on a broadcast axis (batch, row, head or key); no data: none
  bool bias_pairs;           // two adjacent keys may be read at once, in the dtype of q or f32
  const int64_t* seed;       // [2]: seed and offset of dropout; null: none
  uint32_t drop_below;
  const int64_t* positions;  // [batch, 2]: positions of query 0 and key 0; null: the band's, key 0 at 0
  int64_t position_stride;
  float kept;                // factor of kept weights, applied in the epilogue; 1 without dropout
};

inline ScoreOptions score_options(const Problem& p, const Args& a) {
  ScoreOptions x{.kept = 1.f};
  if (p.has(Option::softcap) && a.softcap > 0.f)
    x.cap = a.softcap * kLog2e, x.cap_factor = 2.f * kLog2e * scale_of(p, a) / a.softcap;
  if (p.has(Option::alibi)) x.slopes = a.row<const float>(Role::slopes), x.slope_stride = a[Role::slopes].stride.head;
  if (p.has(Option::bias)) {
    const Tensor& t = x.bias = a[Role::bias];
    const bool even = t.stride.batch % 2 == 0 && t.stride.seq % 2 == 0 && t.stride.head % 2 == 0;
    x.bias_pairs = even && t.extent.dim > 1 && reinterpret_cast<uintptr_t>(t.data) % (2 * size_of(t.dtype)) == 0 &&
                   (t.dtype == DType::f32 || t.dtype == p.dtype.q);
  }
  if (p.has(Option::dropout)) {
    x.seed = a.row<const int64_t>(Role::seed);  // read on the GPU
    x.drop_below = drop_below(a.dropout), x.kept = kept_scale(a.dropout);
  }
  if (p.mask.align == Align::absolute)
    x.positions = a.row<const int64_t>(Role::positions), x.position_stride = a[Role::positions].stride.batch;
  return x;
}

}  // namespace attune::sm90
