// What a transformer does to rows between two products: norms, rotary, activations, biases, dropout and their
// gradients, on the device where the tensors lie. A row is the last axis of a tensor. Tensors of a call that are not
// said to be f32 share one dtype (f32, f16 or bf16); arithmetic is f32. Sums over rows are made in an order that
// depends on the shape alone. On a GPU all are launches on `stream` that wait for nothing.
#pragma once
#include <cmath>

#include "core/dropout.h"
#include "core/status.h"
#include "core/tensor.h"

namespace attune {

enum class NormKind : int32_t { layer, rms };
enum class Activation : int32_t { relu, gelu, silu, swiglu };  // gelu is erf's; swiglu: silu(first half) * second half

// out = (x - mean) * rstd * weight + bias; rms has no mean. stat [.., 2] f32 keeps mean and rstd of each row.
struct Normalize {
  Tensor x{}, weight{}, bias{}, out{}, stat{};  // no bias: its data is null
  NormKind kind = NormKind::layer;
  float eps = 1e-5f;
};
// dx = gradient + keep_dx * dx, and the same with the f32 sums d_weight and d_bias. What is not given is not computed.
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

// In place, of x [batch, seq, head, dim]: the first 2 R dims turn by the angles of the row's place in its sequence, R
// being the width of cos and sin [seq, R] f32. Pairs are (2i, 2i + 1), or with `halves` (i, i + R).
struct Rotate {
  Tensor x{}, cos{}, sin{};
  int32_t halves = 0, inverse = 0;
};

// Of swiglu x and dx are twice as wide as out. With d_out: dx = gradient + keep * dx.
struct Activate {
  Tensor x{}, out{}, d_out{}, dx{};
  Activation kind = Activation::gelu;
  float keep = 0.f;
};

// Elements that are dropped become 0, others are divided by 1 - p; the same ones in a backward, by seed [2] i64 and
// `layer`, which tells the places of one model apart.
struct Drop {
  Tensor x{}, out{}, seed{};
  float p = 0.f;
  uint32_t layer = 0;
};

// out [.., groups, dim] = mean over the heads of a group of x; or back, dx = d_out spread + keep * dx.
struct GroupMean {
  Tensor x{}, out{};
  int32_t backward = 0;  // x is written from out
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

// Parts of a sum over rows: each is summed by itself, then all in order.
constexpr int kMostParts = 128;
constexpr int column_parts(int64_t rows) { return int(rows < 32 * kMostParts ? (rows + 31) / 32 : kMostParts); }

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
