// SPDX-License-Identifier: Apache-2.0
// Transformer operations on rows between two products: norms, rotary, activations, biases, dropout and their gradients,
// on the device of the tensors. A row is the last axis of a tensor. Unless stated to be f32, the tensors of a call
// share one dtype (f32, f16 or bf16); arithmetic is f32. The order of sums over rows depends on the shape alone. On a
// GPU, all are launches on `stream` that wait for nothing.
#pragma once
#include <cmath>

#include "core/dropout.h"
#include "core/status.h"
#include "core/tensor.h"

namespace attune {

enum class NormKind : int32_t { layer, rms };
enum class Activation : int32_t { relu, gelu, silu, swiglu };  // gelu uses erf; swiglu: silu(first half) * second half

// out = (x - mean) * rstd * weight + bias; rms has no mean. stat [.., 2] f32 holds mean and rstd of each row.
struct Normalize {
  Tensor x{}, weight{}, bias{}, out{}, stat{};  // bias is optional: null data
  NormKind kind = NormKind::layer;
  float eps = 1e-5f;
};
// dx = gradient + keep_dx * dx, and likewise for the f32 sums d_weight and d_bias. Outputs that are not given are
// skipped.
struct NormalizeBackward {
  Tensor x{}, weight{}, stat{}, d_out{}, dx{}, d_weight{}, d_bias{};
  NormKind kind = NormKind::layer;
  float keep_dx = 0.f, keep_sums = 0.f;
  float* scratch = nullptr;  // column_bytes of x
};
// sum [1, 1, 1, width] f32 = the sum over all rows of x + keep * sum
struct ColumnSum {
  Tensor x{}, sum{};
  float keep = 0.f;
  float* scratch = nullptr;  // column_bytes of x
};
size_t column_bytes(const Tensor& x);

// Rotates x [batch, seq, head, dim] in place: the first 2 R dims, by the angles of the row's position in its sequence.
// R is the width of cos and sin [seq, R] f32. Pairs are (2i, 2i + 1), or with `halves` (i, i + R).
struct Rotate {
  Tensor x{}, cos{}, sin{};
  int32_t halves = 0, inverse = 0;
};

// For swiglu, x and dx are twice as wide as out. With d_out: dx = gradient + keep * dx.
struct Activate {
  Tensor x{}, out{}, d_out{}, dx{};
  Activation kind = Activation::gelu;
  float keep = 0.f;
};

// Dropped elements become 0, others are divided by 1 - p. A backward drops the same ones, by seed [2] i64 and `layer`,
// which distinguishes the dropouts of one model.
struct Drop {
  Tensor x{}, out{}, seed{};
  float p = 0.f;
  uint32_t layer = 0;
};

// out [.., groups, dim] = mean of x over the heads of a group; backward: dx = d_out spread over the heads + keep * dx.
struct GroupMean {
  Tensor x{}, out{};
  int32_t backward = 0;  // writes x from out
  float keep = 0.f;
};

Status normalize(const Normalize&, void* stream);
Status normalize_backward(const NormalizeBackward&, void* stream);
Status column_sum(const ColumnSum&, void* stream);
Status rotate(const Rotate&, void* stream);
Status activate(const Activate&, void* stream);           // out from x
Status activate_backward(const Activate&, void* stream);  // dx from x and d_out
Status drop(const Drop&, void* stream);
Status group_mean(const GroupMean&, void* stream);

namespace detail {

// Splits of a sum over rows: each is summed separately, then all in order.
constexpr int kMostSplits = 128;
constexpr int column_splits(int64_t rows) { return int(rows < 32 * kMostSplits ? (rows + 31) / 32 : kMostSplits); }

ATTUNE_HD inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
ATTUNE_HD inline float activated(Activation kind, float x) {
  constexpr float kRootHalf = 0.70710678f;
  switch (kind) {
    case Activation::relu: return x > 0.f ? x : 0.f;
    case Activation::gelu: return 0.5f * x * (1.f + erff(x * kRootHalf));
    default: return x * sigmoid(x);
  }
}
ATTUNE_HD inline float slope(Activation kind, float x) {
  constexpr float kRootHalf = 0.70710678f, kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
  if (kind == Activation::relu) return x > 0.f ? 1.f : 0.f;
  if (kind == Activation::gelu) return 0.5f * (1.f + erff(x * kRootHalf)) + x * kDensity * expf(-0.5f * x * x);
  const float s = sigmoid(x);
  return s * (1.f + x * (1.f - s));
}
ATTUNE_HD inline float dropped(const Drop& d, const int64_t* seed, int64_t row, int64_t column) {
  const Dropout mask{uint64_t(seed[0]), uint64_t(seed[1]), uint32_t(d.p * 4294967296.0), 1.f / (1.f - d.p)};
  return mask.factor(d.layer ^ uint32_t(row >> 32), row, column);
}

}  // namespace detail

namespace cuda {

Status normalize(const Normalize&, void* stream);
Status normalize_backward(const NormalizeBackward&, void* stream);
Status column_sum(const ColumnSum&, void* stream);
Status rotate(const Rotate&, void* stream);
Status activate(const Activate&, void* stream);
Status activate_backward(const Activate&, void* stream);
Status drop(const Drop&, void* stream);
Status group_mean(const GroupMean&, void* stream);

}  // namespace cuda
}  // namespace attune
