// SPDX-License-Identifier: Apache-2.0
// The portable kernels: plain loops, row-major panels, f32 arithmetic for every stored dtype. The model for a new
// instruction set, and the reference that the others are tested against.
#include <algorithm>
#include <cmath>

#include "machine/cpu/kernels.h"

namespace attune {
namespace {

constexpr int kRows = 4, kKeys = 8, kTile = 512;
constexpr float kInf = INFINITY;

// q panel: [dim][rows]
template <class T>
void pack_q(const void* const* rows, int n, int dim, float scale, void* to) {
  float* q = static_cast<float*>(to);
  for (int d = 0; d < dim; ++d)
    for (int r = 0; r < kRows; ++r) q[d * kRows + r] = r < n ? float(static_cast<const T*>(rows[r])[d]) * scale : 0.f;
}

// k and v tiles: [key][dim]
template <class T>
void pack_k(const void* const* rows, int n, int dim, void* to) {
  float* k = static_cast<float*>(to);
  for (int j = 0; j < (n + kKeys - 1) / kKeys * kKeys; ++j)
    for (int d = 0; d < dim; ++d) k[j * dim + d] = j < n ? float(static_cast<const T*>(rows[j])[d]) : 0.f;
}
template <class T>
void pack_v(const void* const* rows, int n, int dim, void* to, int) { pack_k<T>(rows, n, dim, to); }

// s and p: [key][rows]
void scores(const void* q_panel, const void* k_tile, int n, int dim, float* s, float* top) {
  const float *q = static_cast<const float*>(q_panel), *k = static_cast<const float*>(k_tile);
  std::fill_n(top, kRows, -kInf);
  for (int j = 0; j < n; ++j) {
    float acc[kRows] = {};
    for (int d = 0; d < dim; ++d)
      for (int r = 0; r < kRows; ++r) acc[r] += q[d * kRows + r] * k[j * dim + d];
    for (int r = 0; r < kRows; ++r) s[j * kRows + r] = acc[r], top[r] = std::max(top[r], acc[r]);
  }
}

void hide(float* s, int n, const int* first, const int* last, float* top) {
  std::fill_n(top, kRows, -kInf);
  for (int j = 0; j < n; ++j)
    for (int r = 0; r < kRows; ++r) {
      float& x = s[j * kRows + r];
      if (j < first[r] || j >= last[r]) x = -kInf;
      top[r] = std::max(top[r], x);
    }
}

void weights(const float* s, int n, float, const float* ref, float* sum, void* to) {
  float* p = static_cast<float*>(to);
  for (int r = 0; r < kRows; ++r) {
    const float shift = ref[r] == -kInf ? 0.f : ref[r];
    for (int j = 0; j < n; ++j) sum[r] += p[j * kRows + r] = std::exp2(s[j * kRows + r] - shift);
  }
}

// o: [rows][dim]
void rescale(float* o, int dim, const float* factor) {
  for (int r = 0; r < kRows; ++r)
    for (int d = 0; d < dim; ++d) o[r * dim + d] *= factor[r];
}

void accumulate(const void* p_panel, const void* v_tile, int, int first, int n, int dim, float* o) {
  const float *p = static_cast<const float*>(p_panel), *v = static_cast<const float*>(v_tile) + int64_t(first) * dim;
  for (int j = 0; j < n; ++j)
    for (int r = 0; r < kRows; ++r)
      for (int d = 0; d < dim; ++d) o[r * dim + d] += p[j * kRows + r] * v[j * dim + d];
}

void add_row(const float* x, int dim, int r, float* o) {
  for (int d = 0; d < dim; ++d) o[r * dim + d] += x[d];
}

void unpack(const float* o, int dim, const float* factor, int n, float* to, int64_t stride) {
  for (int r = 0; r < n; ++r)
    for (int d = 0; d < dim; ++d) to[r * stride + d] = o[r * dim + d] * factor[r];
}

float gradients(const float* s, const float* dp, int n, float, const float* lse, const float* delta, void* p_to,
                void* ds_to) {
  float *p = static_cast<float*>(p_to), *ds = static_cast<float*>(ds_to);
  float sum = 0.f;
  for (int j = 0; j < n; ++j)
    for (int r = 0; r < kRows; ++r) {
      const int at = j * kRows + r;
      p[at] = std::exp2(s[at] - lse[j]);
      ds[at] = p[at] * (dp[at] - delta[j]);
      sum += ds[at];
    }
  return sum;
}

void transpose(const void* ds_panel, int n, void* to, int, int64_t panel, int at) {
  const float* ds = static_cast<const float*>(ds_panel);
  for (int j = 0; j < n; ++j)
    for (int r = 0; r < kRows; ++r)
      static_cast<float*>(to)[j / kRows * panel + (at + r) * kRows + j % kRows] = ds[j * kRows + r];
}

void read_scores(const float* s, int n, float* plain, int64_t stride) {
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < n; ++j) plain[r * stride + j] = s[j * kRows + r];
}

void write_scores(const float* plain, int64_t stride, int n, float* s) {
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < n; ++j) s[j * kRows + r] = plain[r * stride + j];
}
void write_weights(const float* plain, int64_t stride, int n, void* p) {
  write_scores(plain, stride, n, static_cast<float*>(p));
}

template <class T>
void widen(const void* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = float(static_cast<const T*>(from)[i]);
}
template <class T>
void narrow(const float* from, int64_t n, void* to) {
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(to)[i] = T(from[i]);
}

template <class T>
bool finite(const void* const* rows, int n, int dim) {
  bool all = true;
  for (int r = 0; r < n; ++r)
    for (int d = 0; d < dim; ++d) all &= std::isfinite(float(static_cast<const T*>(rows[r])[d]));
  return all;
}

template <class T>
constexpr CpuKernels kernels(DType dtype) {
  return {.isa = "scalar",
          .needs = 0,
          .dtype = dtype,
          .rows = kRows,
          .keys = kKeys,
          .tile = kTile,
          .dim_step = 1,
          .operand_bytes = sizeof(float),
          .scale_in_q = true,
          .pack_q = pack_q<T>,
          .pack_k = pack_k<T>,
          .pack_v = pack_v<T>,
          .scores = scores,
          .hide = hide,
          .weights = weights,
          .rescale = rescale,
          .accumulate = accumulate,
          .add_row = add_row,
          .unpack = unpack,
          .gradients = gradients,
          .transpose = transpose,
          .read_scores = read_scores,
          .write_scores = write_scores,
          .write_weights = write_weights,
          .widen = widen<T>,
          .narrow = narrow<T>,
          .finite = finite<T>};
}

}  // namespace

const CpuKernels kScalarKernels[3] = {kernels<float>(DType::f32), kernels<F16>(DType::f16), kernels<Bf16>(DType::bf16)};

}  // namespace attune
