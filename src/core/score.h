// SPDX-License-Identifier: Apache-2.0
// From a dot product to a logit. Each kernel has two policies: Plain only scales; General has every option as a
// run-time switch. An unused option therefore costs nothing, and the number of kernels does not grow with the options.
// Sink and accumulate affect only the end of a row (softmax.h) and work with both.
#pragma once
#include "core/dropout.h"
#include "core/softmax.h"

namespace attune {

template <int Roles>
ATTUNE_HD float scale_of(const Problem& p, const ArgsOf<Roles>& a) {
  return a.scale != 0.f ? a.scale : 1.f / sqrtf(float(p.dim_qk));
}

inline bool needs_general(const Problem& p) {
  return p.has(Option::softcap) || p.has(Option::alibi) || p.has(Option::bias) || p.has(Option::dropout) ||
         p.has(Option::block_bias);
}

struct Plain {
  float scale;  // includes log2 e

  template <int Roles>
  ATTUNE_HD Plain(const Problem& p, const ArgsOf<Roles>& a, const Sequence&, int, int)
      : scale(scale_of(p, a) * kLog2e) {}
  ATTUNE_HD float logit(float dot, int, int) const { return dot * scale; }
  ATTUNE_HD float keep(int, int) const { return 1.f; }
  ATTUNE_HD float slope_of_logit(float) const { return 1.f; }
};

// One element of a bias of any dtype.
ATTUNE_HD inline float bias_at(const Tensor& t, int64_t b, int64_t i, int64_t h, int64_t j) {
  const char* at = row_address(t, b, i, h);
  if (t.extent.dim == 1) j = 0;
  switch (t.dtype) {
    case DType::f64: return float(reinterpret_cast<const double*>(at)[j]);
    case DType::f32: return reinterpret_cast<const float*>(at)[j];
    case DType::f16: return float(reinterpret_cast<const F16*>(at)[j]);
    default: return float(reinterpret_cast<const Bf16*>(at)[j]);
  }
}

struct General {
  Band band;
  float scale, softcap, slope;
  const Tensor* bias;       // null without the option
  const float* block_bias;  // null without the option; indexed by list entry
  int entry = 0;            // list entry of the current pairs; set by the kernel for each tile
  Dropout dropout;
  int batch, head;
  uint32_t stream;  // batch and head, for dropout

  template <int Roles>
  ATTUNE_HD General(const Problem& p, const ArgsOf<Roles>& a, const Sequence& s, int b, int h)
      : band(s.band), scale(scale_of(p, a)), softcap(p.has(Option::softcap) ? a.softcap : 0.f),
        slope(p.has(Option::alibi) ? *a.template row<const float>(Role::slopes, 0, 0, h) : 0.f),
        bias(p.has(Option::bias) ? &a[Role::bias] : nullptr),
        block_bias(p.has(Option::block_bias) ? a.template row<const float>(Role::bias) : nullptr),
        dropout(dropout_of(p, a)), batch(b), head(h), stream(batch_head(p, b, h)) {}

  ATTUNE_HD float logit(float dot, int i, int j) const {  // base 2
    float s = dot * scale;
    if (softcap > 0.f) s = softcap * tanhf(s / softcap);
    if (bias) s += bias_at(*bias, batch, i, head, j);
    if (block_bias) s += block_bias[entry];
    if (slope != 0.f) s -= slope * fabsf(float(band.ahead(i, j)));
    return s * kLog2e;
  }
  ATTUNE_HD float keep(int i, int j) const {
    return dropout.below ? dropout.factor(stream, band.q_position(i), band.k_position(j)) : 1.f;
  }
  // d logit / d (scale * dot), natural on both sides: 1 - tanh^2 with softcap, else 1.
  ATTUNE_HD float slope_of_logit(float dot) const {
    if (softcap <= 0.f) return 1.f;
    const float t = tanhf(dot * scale / softcap);
    return 1.f - t * t;
  }
};

}  // namespace attune
