// SPDX-License-Identifier: Apache-2.0
// layer_ops.h on the CPU, and the dispatch to a GPU. Rows are divided evenly over the library's threads.
#include "machine/layer_ops.h"

#include <algorithm>
#include <cmath>

#include "core/problem.h"
#include "machine/cpu/threads.h"
#include "machine/host.h"

namespace attune {
namespace {

constexpr int64_t kLeast = 1 << 13;  // elements that justify a thread

int64_t rows_of(const Tensor& t) { return int64_t(t.extent.batch) * t.extent.seq * t.extent.head; }

template <class T>
T* row(const Tensor& t, int64_t n) {
  const int64_t heads = t.extent.head, seq = t.extent.seq;
  return view<T>(t).row(n / heads / seq, n / heads % seq, n % heads);
}

// Calls f(first, last) for equal ranges of 0 ... count.
template <class F>
void each_range(int64_t count, int64_t width, F f) {
  const int workers = int(std::clamp<int64_t>(count * width / kLeast, 1, std::min<int64_t>(default_threads(), 1024)));
  auto work = [&](int worker) { f(count * worker / workers, count * (worker + 1) / workers); };
  parallel(workers, work);
}
template <class F>
void each_row(const Tensor& t, F f) {
  each_range(rows_of(t), t.extent.dim, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) f(n);
  });
}

template <class F>
Status typed(std::string_view who, DType t, F f) {
  if (t == DType::f32) f(float{});
  else if (t == DType::f16) f(F16{});
  else if (t == DType::bf16) f(Bf16{});
  else return Status::no(who, ": dtype ", name(t), " is not one of f32, f16, bf16");
  return Status::good();
}

template <class T>
void normalize_rows(const Normalize& a) {
  const int width = a.x.extent.dim;
  const T *weight = static_cast<const T*>(a.weight.data), *bias = static_cast<const T*>(a.bias.data);
  each_row(a.x, [&](int64_t n) {
    const T* x = row<const T>(a.x, n);
    float mean = 0.f, square = 0.f;
    if (a.kind == NormKind::layer) {
      for (int d = 0; d < width; ++d) mean += float(x[d]);
      mean /= float(width);
    }
    for (int d = 0; d < width; ++d) square += (float(x[d]) - mean) * (float(x[d]) - mean);
    const float rstd = 1.f / std::sqrt(square / float(width) + a.eps);
    float* stat = row<float>(a.stat, n);
    stat[0] = mean, stat[1] = rstd;
    T* out = row<T>(a.out, n);
    for (int d = 0; d < width; ++d)
      out[d] = T((float(x[d]) - mean) * rstd * float(weight[d]) + (bias ? float(bias[d]) : 0.f));
  });
}

template <class T>
void normalize_gradient(const NormalizeBackward& a) {
  const int width = a.x.extent.dim;
  const T* weight = static_cast<const T*>(a.weight.data);
  each_row(a.x, [&](int64_t n) {
    const T *x = row<const T>(a.x, n), *dy = row<const T>(a.d_out, n);
    const float mean = row<const float>(a.stat, n)[0], rstd = row<const float>(a.stat, n)[1];
    float sum = 0.f, product = 0.f;  // of the gradient of the normalized row, and of its product with that row
    for (int d = 0; d < width; ++d) {
      const float g = float(dy[d]) * float(weight[d]);
      sum += g, product += g * (float(x[d]) - mean) * rstd;
    }
    sum = a.kind == NormKind::layer ? sum / float(width) : 0.f, product /= float(width);
    T* dx = row<T>(a.dx, n);
    for (int d = 0; d < width; ++d) {
      const float g = float(dy[d]) * float(weight[d]), normal = (float(x[d]) - mean) * rstd;
      const float grad = rstd * (g - sum - normal * product);
      dx[d] = T(a.keep_dx == 0.f ? grad : grad + a.keep_dx * float(dx[d]));
    }
  });
}

// to[which][d] = sum over all rows of f(row, d, which), in splits.
template <int Sums, class F>
void sum_columns(const Tensor& x, float* scratch, const Tensor (&to)[Sums], float keep, F f) {
  const int64_t rows = rows_of(x), splits = detail::column_splits(rows), width = x.extent.dim;
  each_range(splits, ceil_div(rows, std::max<int64_t>(splits, 1)) * width, [&](int64_t first, int64_t last) {
    for (int64_t split = first; split < last; ++split) {
      float* sum = scratch + split * Sums * width;
      std::fill_n(sum, Sums * width, 0.f);
      for (int64_t n = rows * split / splits; n < rows * (split + 1) / splits; ++n) f(n, sum);
    }
  });
  for (int which = 0; which < Sums; ++which) {
    float* sum = static_cast<float*>(to[which].data);
    if (!sum) continue;
    for (int64_t d = 0; d < width; ++d) {
      float all = 0.f;
      for (int64_t split = 0; split < splits; ++split) all += scratch[(split * Sums + which) * width + d];
      sum[d] = keep == 0.f ? all : all + keep * sum[d];
    }
  }
}

template <class T>
void rotate_rows(const Rotate& a) {
  const int rotated = a.cos.extent.dim, next = a.halves ? rotated : 1, step = a.halves ? 1 : 2;
  each_row(a.x, [&](int64_t n) {
    const int64_t s = n / a.x.extent.head % a.x.extent.seq;
    const float *cos = row<const float>(a.cos, s), *sin = row<const float>(a.sin, s);
    T* x = row<T>(a.x, n);
    for (int i = 0; i < rotated; ++i) {
      const float first = float(x[i * step]), second = float(x[i * step + next]), si = a.inverse ? -sin[i] : sin[i];
      x[i * step] = T(first * cos[i] - second * si);
      x[i * step + next] = T(second * cos[i] + first * si);
    }
  });
}

template <class T>
void activate_rows(const Activate& a) {
  const int width = a.out.extent.dim;
  each_row(a.out, [&](int64_t n) {
    const T* x = row<const T>(a.x, n);
    T* out = row<T>(a.out, n);
    for (int d = 0; d < width; ++d) {
      const float y = detail::activated(a.kind, float(x[d]));
      out[d] = T(a.kind == Activation::swiglu ? y * float(x[width + d]) : y);
    }
  });
}

template <class T>
void activate_gradient(const Activate& a) {
  const int width = a.d_out.extent.dim;
  each_row(a.d_out, [&](int64_t n) {
    const T *x = row<const T>(a.x, n), *dy = row<const T>(a.d_out, n);
    T* dx = row<T>(a.dx, n);
    const auto put = [&](int d, float g) { dx[d] = T(a.keep == 0.f ? g : g + a.keep * float(dx[d])); };
    for (int d = 0; d < width; ++d) {
      const float g = float(dy[d]), s = detail::slope(a.kind, float(x[d]));
      if (a.kind != Activation::swiglu) {
        put(d, g * s);
        continue;
      }
      const float up = float(x[width + d]);
      put(d, g * s * up);
      put(width + d, g * detail::activated(a.kind, float(x[d])));
    }
  });
}

}  // namespace

size_t column_bytes(const Tensor& x) {
  return size_t(detail::column_splits(rows_of(x))) * 2 * size_t(x.extent.dim) * sizeof(float);
}

Status normalize(const Normalize& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::normalize(a, stream);
  return typed("normalize", a.x.dtype, [&]<class T>(T) { normalize_rows<T>(a); });
}

Status normalize_backward(const NormalizeBackward& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::normalize_backward(a, stream);
  return typed("normalize_backward", a.x.dtype, [&]<class T>(T) {
    // Computes the sums first: dx may alias d_out.
    const int width = a.x.extent.dim;
    if (a.d_weight.data || a.d_bias.data)
      sum_columns<2>(a.x, a.scratch, {a.d_weight, a.d_bias}, a.keep_sums, [&](int64_t n, float* sum) {
        const T *x = row<const T>(a.x, n), *dy = row<const T>(a.d_out, n);
        const float mean = row<const float>(a.stat, n)[0], rstd = row<const float>(a.stat, n)[1];
        for (int d = 0; d < width; ++d) {
          sum[d] += float(dy[d]) * (float(x[d]) - mean) * rstd;
          sum[width + d] += float(dy[d]);
        }
      });
    if (a.dx.data) normalize_gradient<T>(a);
  });
}

Status column_sum(const ColumnSum& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::column_sum(a, stream);
  return typed("column_sum", a.x.dtype, [&]<class T>(T) {
    sum_columns<1>(a.x, a.scratch, {a.sum}, a.keep, [&](int64_t n, float* sum) {
      const T* x = row<const T>(a.x, n);
      for (int d = 0; d < a.x.extent.dim; ++d) sum[d] += float(x[d]);
    });
  });
}

Status rotate(const Rotate& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::rotate(a, stream);
  return typed("rotate", a.x.dtype, [&]<class T>(T) { rotate_rows<T>(a); });
}

Status activate(const Activate& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::activate(a, stream);
  return typed("activate", a.x.dtype, [&]<class T>(T) { activate_rows<T>(a); });
}

Status activate_backward(const Activate& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::activate_backward(a, stream);
  return typed("activate_backward", a.x.dtype, [&]<class T>(T) { activate_gradient<T>(a); });
}

Status drop(const Drop& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::drop(a, stream);
  const int64_t* seed = static_cast<const int64_t*>(a.seed.data);
  return typed("drop", a.x.dtype, [&]<class T>(T) {
    each_row(a.x, [&](int64_t n) {
      const T* x = row<const T>(a.x, n);
      T* out = row<T>(a.out, n);
      for (int d = 0; d < a.x.extent.dim; ++d) out[d] = T(float(x[d]) * detail::dropped(a, seed, n, d));
    });
  });
}

Status group_mean(const GroupMean& a, void* stream) {
  if (a.x.device == DeviceKind::cuda) return cuda::group_mean(a, stream);
  const int heads = a.x.extent.head / a.out.extent.head;
  return typed("group_mean", a.x.dtype, [&]<class T>(T) {
    each_row(a.out, [&](int64_t n) {  // heads of a group are adjacent
      T* out = row<T>(a.out, n);
      for (int d = 0; d < a.out.extent.dim; ++d) {
        float sum = 0.f;
        for (int h = 0; h < heads; ++h) {
          T* x = row<T>(a.x, n * heads + h) + d;
          if (!a.backward) sum += float(*x);
          else *x = T(float(out[d]) / float(heads) + (a.keep == 0.f ? 0.f : a.keep * float(*x)));
        }
        if (!a.backward) out[d] = T(sum / float(heads));
      }
    });
  });
}

}  // namespace attune
