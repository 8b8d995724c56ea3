// SPDX-License-Identifier: Apache-2.0
#include "models/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/problem.h"
#include "machine/cpu/threads.h"
#include "machine/host.h"

namespace attune::models {
namespace {

constexpr int64_t kLeast = 1 << 13;  // elements that justify a thread

template <class F>
void each_range(int64_t count, int64_t width, F f) {
  const int workers = int(std::clamp<int64_t>(count * width / kLeast, 1, std::min<int64_t>(default_threads(), 1024)));
  auto work = [&](int worker) { f(count * worker / workers, count * (worker + 1) / workers); };
  parallel(workers, work);
}

template <class F>
Status typed(std::string_view who, const Tensor& t, F f) {
  if (t.device != DeviceKind::cpu) return Status::unsupported(who, ": runs on a CPU, not yet on a GPU");
  if (t.dtype == DType::f32) f(float{});
  else if (t.dtype == DType::f16) f(F16{});
  else if (t.dtype == DType::bf16) f(Bf16{});
  else return Status::no(who, ": dtype ", name(t.dtype), " is not one of f32, f16, bf16");
  return Status::good();
}

int64_t rows_of(const Tensor& t) { return int64_t(t.extent.batch) * t.extent.seq * t.extent.head; }
template <class T>
T* row(const Tensor& t, int64_t n) {
  const int64_t heads = t.extent.head, seq = t.extent.seq;
  return view<T>(t).row(n / heads / seq, n / heads % seq, n % heads);
}
template <class T>
T* data(const Tensor& t) { return static_cast<T*>(t.data); }

// e^x to an ulp or two, in operations that compilers vectorize.
inline float exponential(float x) {
  constexpr float kLog2e = 1.44269504f, kRound = 12582912.f;  // 1.5 * 2^23
  x = x < -87.f ? -87.f : x;
  x = x > 88.f ? 88.f : x;
  const float n = (x * kLog2e + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.98756915e-4f;
  p = p * r + 1.39819995e-3f, p = p * r + 8.33345190e-3f, p = p * r + 4.16657960e-2f;
  p = p * r + 1.66666655e-1f, p = p * r + 5.00000012e-1f;
  return (p * r * r + r + 1.f) * std::bit_cast<float>((int32_t(n) + 127) << 23);
}
inline float tanh_of(float x) { return 1.f - 2.f / (exponential(2.f * x) + 1.f); }

// The same with a small relative error near 0 as well, where 1 - 2 / ... loses digits.
inline float tanh_near(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f, p = p * z - 5.37397155531e-2f, p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  return std::abs(x) < 0.625f ? x + x * z * p : tanh_of(x);
}

constexpr float kRoot = 0.797884561f, kCubic = 0.044715f;  // sqrt(2 / pi), and gelu_new's coefficient
struct Point { float value, slope; };
inline Point gelu_tanh(float x) {
  const float t = tanh_of(kRoot * (x + kCubic * x * x * x));
  return {0.5f * x * (1.f + t),
          0.5f * (1.f + t) + 0.5f * x * (1.f - t * t) * kRoot * (1.f + 3.f * kCubic * x * x)};
}
inline Point point(Act act, float x) {
  switch (act) {
    case Act::gelu_tanh: return gelu_tanh(x);
    case Act::gelu: return {detail::activated(Activation::gelu, x), detail::slope(Activation::gelu, x)};
    case Act::silu: return {detail::activated(Activation::silu, x), detail::slope(Activation::silu, x)};
    default: return {x > 0.f ? x : 0.f, x > 0.f ? 1.f : 0.f};
  }
}

// A row in pieces of fixed length, so that the loop over the common activation is vectorized.
template <class T>
void activate_row(const Gate& a, int64_t n) {
  const int width = a.out.extent.dim;
  const T* x = row<const T>(a.x, n);
  T* out = row<T>(a.out, n);
  if constexpr (std::is_same_v<T, float>)
    if (a.act == Act::gelu_tanh) {
      for (int d = 0; d < width; ++d) out[d] = gelu_tanh(x[d]).value;
      for (int d = 0; a.gated && d < width; ++d) out[d] *= x[width + d];
      return;
    }
  for (int d = 0; d < width; ++d)
    out[d] = T(point(a.act, float(x[d])).value * (a.gated ? float(x[width + d]) : 1.f));
}

template <class T>
void activate_row_backward(const Gate& a, int64_t n) {
  const int width = a.d_out.extent.dim;
  const T *x = row<const T>(a.x, n), *dy = row<const T>(a.d_out, n);
  T* dx = row<T>(a.dx, n);
  if constexpr (std::is_same_v<T, float>)
    if (a.act == Act::gelu_tanh && !a.gated && a.keep == 0.f) {
      for (int d = 0; d < width; ++d) dx[d] = dy[d] * gelu_tanh(x[d]).slope;
      return;
    }
  const auto put = [&](int d, float g) { dx[d] = T(a.keep == 0.f ? g : g + a.keep * float(dx[d])); };
  for (int d = 0; d < width; ++d) {
    const Point p = point(a.act, float(x[d]));
    const float g = float(dy[d]), up = a.gated ? float(x[width + d]) : 1.f;
    put(d, g * p.slope * up);
    if (a.gated) put(width + d, g * p.value);
  }
}

// The loss of one row; its logits become their gradients times `factor` (0: stay).
float row_loss(float* x, int vocab, int target, float cap, float factor) {
  if (cap > 0.f)
    for (int d = 0; d < vocab; ++d) x[d] = cap * tanh_near(x[d] / cap);
  const float top = *std::max_element(x, x + vocab), own = target < 0 ? 0.f : x[target];
  double sum = 0;
  constexpr int kPiece = 512;
  float e[kPiece];
  for (int at = 0; at < vocab; at += kPiece) {
    const int n = std::min(kPiece, vocab - at);
    for (int d = 0; d < n; ++d) e[d] = exponential(x[at + d] - top);
    float piece = 0.f;
    for (int d = 0; d < n; ++d) piece += e[d];
    sum += double(piece);
  }
  if (factor != 0.f) {
    const float by = target < 0 ? 0.f : factor / float(sum);
    const float inverse = cap > 0.f ? 1.f / cap : 0.f;
    for (int d = 0; d < vocab; ++d) {
      const float g = by * exponential(x[d] - top) - (d == target ? factor : 0.f), t = x[d] * inverse;
      x[d] = g * (1.f - t * t);  // of tanh
    }
  }
  return target < 0 ? 0.f : float(std::log(sum)) + top - own;
}

}  // namespace

Status embed(const Embed& a, void*) {
  return typed("embed", a.out, [&]<class T>(T) {
    const int width = a.out.extent.dim, seq = a.out.extent.seq;
    const int32_t *tokens = data<const int32_t>(a.tokens), *first = data<const int32_t>(a.first);
    each_range(rows_of(a.out), width, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* from = data<const T>(a.table) + int64_t(tokens[n]) * width;
        const int64_t position = n % seq + (first ? first[n / seq] : 0);
        const T* plus = a.positions.data ? data<const T>(a.positions) + position * width : nullptr;
        T* to = row<T>(a.out, n);
        for (int d = 0; d < width; ++d)
          to[d] = T(a.scale * float(from[d]) + (plus ? float(plus[d]) : 0.f));
      }
    });
  });
}

Status embed_backward(const EmbedBackward& a, void*) {
  return typed("embed_backward", a.d_out, [&]<class T>(T) {
    const int width = a.d_out.extent.dim, seq = a.d_out.extent.seq;
    const int64_t rows = rows_of(a.d_out);
    const int32_t* tokens = data<const int32_t>(a.tokens);
    // Each thread has some columns of all rows: tokens repeat, and the order of a sum is that of the rows.
    each_range(width, rows, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < rows; ++n) {
        const T* from = row<const T>(a.d_out, n);
        float* to = data<float>(a.d_table) + int64_t(tokens[n]) * width;
        for (int64_t d = begin; d < end; ++d) to[d] += a.scale * float(from[d]);
        if (!a.d_positions.data) continue;
        float* place = data<float>(a.d_positions) + n % seq * width;
        for (int64_t d = begin; d < end; ++d) place[d] += float(from[d]);
      }
    });
  });
}

Status activate(const Gate& a, void*) {
  return typed("activate", a.x, [&]<class T>(T) {
    each_range(rows_of(a.out), a.out.extent.dim, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) activate_row<T>(a, n);
    });
  });
}

Status activate_backward(const Gate& a, void*) {
  return typed("activate_backward", a.x, [&]<class T>(T) {
    each_range(rows_of(a.d_out), a.d_out.extent.dim, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) activate_row_backward<T>(a, n);
    });
  });
}

Status cross_entropy(const CrossEntropy& a, void*) {
  return typed("cross_entropy", a.logits, [&](auto) {
    const int vocab = a.logits.extent.dim;
    const int32_t* targets = data<const int32_t>(a.targets);
    each_range(rows_of(a.logits), vocab, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        data<float>(a.losses)[n] = row_loss(row<float>(a.logits, n), vocab, targets[n], a.softcap, a.factor);
    });
  });
}

Status softcap(const Softcap& a, void*) {
  return typed("softcap", a.logits, [&](auto) {
    const int vocab = a.logits.extent.dim;
    each_range(rows_of(a.logits), vocab, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        float* x = row<float>(a.logits, n);
        for (int d = 0; d < vocab; ++d) x[d] = a.softcap * tanh_near(x[d] / a.softcap);
      }
    });
  });
}

Status adamw(const AdamW& a, void*) {
  return typed("adamw", a.parameter, [&]<class T>(T) {
    const float first_left = 1.f - float(std::pow(double(a.beta1), double(a.step)));
    const float second_left = float(std::sqrt(1. - std::pow(double(a.beta2), double(a.step))));
    const float rate = a.rate / first_left, shrink = 1.f - a.rate * a.decay;
    each_range(rows_of(a.parameter) * a.parameter.extent.dim, 4, [&](int64_t begin, int64_t end) {
      T* p = data<T>(a.parameter);
      const float* g = data<const float>(a.gradient);
      float *m = data<float>(a.first), *v = data<float>(a.second);
      for (int64_t n = begin; n < end; ++n) {
        m[n] = a.beta1 * m[n] + (1.f - a.beta1) * g[n];
        v[n] = a.beta2 * v[n] + (1.f - a.beta2) * g[n] * g[n];
        p[n] = T(float(p[n]) * shrink - rate * m[n] / (std::sqrt(v[n]) / second_left + a.eps));
      }
    });
  });
}

}  // namespace attune::models
