// SPDX-License-Identifier: Apache-2.0
// layer_ops.h on a GPU. Everything is bound by memory: a thread takes 16 bytes at once where rows and addresses allow
// it, a CTA takes a row of a norm, and sums over rows are computed in splits, so that their order is fixed.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "core/divisor.h"
#include "core/mask.h"
#include "machine/cuda/launch.h"
#include "machine/layer_ops.h"

namespace attune::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 32;                   // above, threads take several vectors
constexpr int kColumns = 64, kLanes = kThreads / kColumns;  // sum over rows: columns per CTA, rows at once

template <class T>
__device__ float widen(T x) {
  if constexpr (std::is_same_v<T, F16>) return __half2float(__ushort_as_half(x.bits));
  else return float(x);
}
template <class T>
__device__ T narrow(float x) {
  T y{};
  if constexpr (std::is_same_v<T, F16>) y.bits = __half_as_ushort(__float2half_rn(x));
  else if constexpr (std::is_same_v<T, Bf16>) y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  else y = x;
  return y;
}

template <class T, int Width>
struct alignas(sizeof(T) * Width) Vector { T x[Width]; };

template <int Width, class T>
__device__ void read(const T* from, float (&to)[Width]) {
  const Vector<T, Width> p = *reinterpret_cast<const Vector<T, Width>*>(from);
#pragma unroll
  for (int n = 0; n < Width; ++n) to[n] = widen(p.x[n]);
}
template <int Width, class T>
__device__ void write(const float (&from)[Width], T* to) {
  Vector<T, Width> p;
#pragma unroll
  for (int n = 0; n < Width; ++n) p.x[n] = narrow<T>(from[n]);
  *reinterpret_cast<Vector<T, Width>*>(to) = p;
}

// Addresses of the rows of tensors of one shape, by index.
struct Rows {
  uint32_t count = 0;
  Divisor heads, seq;

  explicit Rows(const Tensor& t)
      : count(uint32_t(t.extent.batch) * uint32_t(t.extent.seq) * uint32_t(t.extent.head)),
        heads(uint32_t(t.extent.head)), seq(uint32_t(t.extent.seq)) {}
  __device__ uint32_t place(uint32_t row) const { return seq.rest(heads.divide(row)); }  // position in its sequence
  template <class T>
  __device__ T* find(const Tensor& t, uint32_t row) const {
    const uint32_t token = heads.divide(row);
    return view<T>(t).row(seq.divide(token), seq.rest(token), heads.rest(row));
  }
};

template <class Args>
struct Params {
  Args a;
  Rows rows;
  Divisor vectors;  // per row
  int64_t all = 0;  // vectors of all rows
  int splits = 1;   // of a sum over rows

  // Calls f(row, element) for every vector of `Width` elements, distributed over all threads of the grid.
  template <int Width, class F>
  __device__ void each(F f) const {
    for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < all; n += int64_t(gridDim.x) * kThreads) {
      const uint32_t row = all <= INT32_MAX ? vectors.divide(uint32_t(n)) : uint32_t(n / vectors.by);
      f(row, (n - int64_t(row) * vectors.by) * Width);
    }
  }
};

// Sum over a CTA, returned to every thread.
__device__ float2 block_sum(float2 x) {
  __shared__ float2 of_warp[kThreads / 32];
#pragma unroll
  for (int n = 16; n; n /= 2) x.x += __shfl_xor_sync(~0u, x.x, n), x.y += __shfl_xor_sync(~0u, x.y, n);
  __syncthreads();  // previous sums have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  float2 all = of_warp[0];
#pragma unroll
  for (int n = 1; n < kThreads / 32; ++n) all.x += of_warp[n].x, all.y += of_warp[n].y;
  return all;
}

// One CTA per row.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads) normalize_kernel(const __grid_constant__ Params<Normalize> p) {
  const Normalize& a = p.a;
  const int width = a.x.extent.dim;
  const T *weight = static_cast<const T*>(a.weight.data), *bias = static_cast<const T*>(a.bias.data);
  for (uint32_t row = blockIdx.x; row < p.rows.count; row += gridDim.x) {
    const T* x = p.rows.find<const T>(a.x, row);
    const auto each = [&](auto f) {
      for (int d = int(threadIdx.x) * Width; d < width; d += kThreads * Width) {
        float value[Width];
        read(x + d, value);
        f(d, value);
      }
    };
    float mean = 0.f;
    if (a.kind == NormKind::layer) {
      float sum = 0.f;
      each([&](int, const float(&v)[Width]) {
#pragma unroll
        for (int n = 0; n < Width; ++n) sum += v[n];
      });
      mean = block_sum({sum, 0.f}).x / float(width);
    }
    float square = 0.f;
    each([&](int, const float(&v)[Width]) {
#pragma unroll
      for (int n = 0; n < Width; ++n) square += (v[n] - mean) * (v[n] - mean);
    });
    const float rstd = 1.f / sqrtf(block_sum({square, 0.f}).x / float(width) + a.eps);
    if (threadIdx.x == 0) *reinterpret_cast<float2*>(p.rows.find<float>(a.stat, row)) = {mean, rstd};
    T* out = p.rows.find<T>(a.out, row);
    each([&](int d, float(&v)[Width]) {
      float w[Width], b[Width] = {};
      read(weight + d, w);
      if (bias) read(bias + d, b);
#pragma unroll
      for (int n = 0; n < Width; ++n) v[n] = (v[n] - mean) * rstd * w[n] + b[n];
      write(v, out + d);
    });
  }
}

template <class T, int Width>
__global__ void __launch_bounds__(kThreads) normalize_backward_kernel(
    const __grid_constant__ Params<NormalizeBackward> p) {
  const NormalizeBackward& a = p.a;
  const int width = a.x.extent.dim;
  const T* weight = static_cast<const T*>(a.weight.data);
  for (uint32_t row = blockIdx.x; row < p.rows.count; row += gridDim.x) {
    const T *x = p.rows.find<const T>(a.x, row), *dy = p.rows.find<const T>(a.d_out, row);
    const float2 stat = *reinterpret_cast<const float2*>(p.rows.find<const float>(a.stat, row));
    // f(d, gradient of the normalized row, the normalized row)
    const auto each = [&](auto f) {
      for (int d = int(threadIdx.x) * Width; d < width; d += kThreads * Width) {
        float value[Width], g[Width], w[Width];
        read(x + d, value), read(dy + d, g), read(weight + d, w);
#pragma unroll
        for (int n = 0; n < Width; ++n) g[n] *= w[n], value[n] = (value[n] - stat.x) * stat.y;
        f(d, g, value);
      }
    };
    float2 sum{0.f, 0.f};
    each([&](int, const float(&g)[Width], const float(&normal)[Width]) {
#pragma unroll
      for (int n = 0; n < Width; ++n) sum.x += g[n], sum.y += g[n] * normal[n];
    });
    sum = block_sum(sum);
    const float mean = a.kind == NormKind::layer ? sum.x / float(width) : 0.f, along = sum.y / float(width);
    T* dx = p.rows.find<T>(a.dx, row);
    each([&](int d, float(&g)[Width], const float(&normal)[Width]) {
      float before[Width] = {};
      if (a.keep_dx != 0.f) read(dx + d, before);
#pragma unroll
      for (int n = 0; n < Width; ++n)
        g[n] = stat.y * (g[n] - mean - normal[n] * along) + (a.keep_dx != 0.f ? a.keep_dx * before[n] : 0.f);
      write(g, dx + d);
    });
  }
}

// A CTA sums kColumns columns of one split of the rows, kLanes rows at once. scratch [split][which][width]
template <int Sums, class Value>
__device__ void sum_split(uint32_t rows, int splits, int width, float* scratch, Value value) {
  __shared__ float lane_sum[Sums][kLanes][kColumns];
  const int strips = int(ceil_div(width, kColumns)), split = int(blockIdx.x) / strips;
  const int column = int(threadIdx.x) % kColumns, lane = int(threadIdx.x) / kColumns;
  const int d = int(blockIdx.x) % strips * kColumns + column;
  const auto begin = [&](int n) { return uint32_t(uint64_t(rows) * uint32_t(n) / uint32_t(splits)); };
  const uint32_t first = begin(split), last = begin(split + 1);
  float sum[Sums] = {};
  if (d < width)
    for (uint32_t row = first + uint32_t(lane); row < last; row += kLanes) value(row, d, sum);
#pragma unroll
  for (int n = 0; n < Sums; ++n) lane_sum[n][lane][column] = sum[n];
  __syncthreads();
  if (lane || d >= width) return;
#pragma unroll
  for (int n = 0; n < Sums; ++n) {
    float all = 0.f;
    for (int k = 0; k < kLanes; ++k) all += lane_sum[n][k][column];
    scratch[(int64_t(split) * Sums + n) * width + d] = all;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_sums_kernel(const __grid_constant__ Params<NormalizeBackward> p) {
  sum_split<2>(p.rows.count, p.splits, p.a.x.extent.dim, p.a.scratch, [&](uint32_t row, int d, float(&sum)[2]) {
    const float2 stat = *reinterpret_cast<const float2*>(p.rows.find<const float>(p.a.stat, row));
    const float dy = widen(p.rows.find<const T>(p.a.d_out, row)[d]);
    sum[0] += dy * (widen(p.rows.find<const T>(p.a.x, row)[d]) - stat.x) * stat.y;
    sum[1] += dy;
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) column_sum_kernel(const __grid_constant__ Params<ColumnSum> p) {
  sum_split<1>(p.rows.count, p.splits, p.a.x.extent.dim, p.a.scratch, [&](uint32_t row, int d, float(&sum)[1]) {
    sum[0] += widen(p.rows.find<const T>(p.a.x, row)[d]);
  });
}

struct SumParams {
  const float* scratch;
  float* to[2];
  int sums, splits, width;
  float keep;
};
__global__ void __launch_bounds__(kThreads) combine_sums_kernel(const __grid_constant__ SumParams p) {
  const int n = int(blockIdx.x) * kThreads + int(threadIdx.x), which = n / p.width, d = n % p.width;
  if (which >= p.sums || !p.to[which]) return;
  float all = 0.f;
  for (int split = 0; split < p.splits; ++split) all += p.scratch[(int64_t(split) * p.sums + which) * p.width + d];
  p.to[which][d] = all + (p.keep != 0.f ? p.keep * p.to[which][d] : 0.f);
}

// A vector is `Width` pairs of halves, or `Width` elements of adjacent pairs.
template <class T, int Width>
__global__ void __launch_bounds__(kThreads) rotate_halves_kernel(const __grid_constant__ Params<Rotate> p) {
  const Rotate& a = p.a;
  p.each<Width>([&](uint32_t row, int64_t i) {
    const uint32_t place = p.rows.place(row);
    float c[Width], s[Width], first[Width], second[Width], rotated[Width];
    read(view<const float>(a.cos).row(0, place, 0) + i, c), read(view<const float>(a.sin).row(0, place, 0) + i, s);
    T *x = p.rows.find<T>(a.x, row) + i, *y = x + a.cos.extent.dim;
    read(x, first), read(y, second);
#pragma unroll
    for (int n = 0; n < Width; ++n) {
      const float sine = a.inverse ? -s[n] : s[n];
      rotated[n] = first[n] * c[n] - second[n] * sine;
      second[n] = second[n] * c[n] + first[n] * sine;
    }
    write(rotated, x), write(second, y);
  });
}

template <class T, int Width>
__global__ void __launch_bounds__(kThreads) rotate_pairs_kernel(const __grid_constant__ Params<Rotate> p) {
  constexpr int kPairs = Width < 2 ? 1 : Width / 2;  // a single element at once means one pair at once
  const Rotate& a = p.a;
  p.each<kPairs>([&](uint32_t row, int64_t i) {
    const uint32_t place = p.rows.place(row);
    float c[kPairs], s[kPairs], x[2 * kPairs];
    read(view<const float>(a.cos).row(0, place, 0) + i, c), read(view<const float>(a.sin).row(0, place, 0) + i, s);
    T* at = p.rows.find<T>(a.x, row) + 2 * i;
    if constexpr (Width > 1) read(at, x);
    else x[0] = widen(at[0]), x[1] = widen(at[1]);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const float sine = a.inverse ? -s[n] : s[n], first = x[2 * n];
      x[2 * n] = first * c[n] - x[2 * n + 1] * sine;
      x[2 * n + 1] = x[2 * n + 1] * c[n] + first * sine;
    }
    if constexpr (Width > 1) write(x, at);
    else at[0] = narrow<T>(x[0]), at[1] = narrow<T>(x[1]);
  });
}

template <class T, int Width>
__global__ void __launch_bounds__(kThreads) activate_kernel(const __grid_constant__ Params<Activate> p) {
  const Activate& a = p.a;
  p.each<Width>([&](uint32_t row, int64_t d) {
    float x[Width], up[Width];
    const T* from = p.rows.find<const T>(a.x, row) + d;
    read(from, x);
    if (a.kind == Activation::swiglu) read(from + a.out.extent.dim, up);
#pragma unroll
    for (int n = 0; n < Width; ++n) {
      x[n] = detail::activated(a.kind, x[n]);
      if (a.kind == Activation::swiglu) x[n] *= up[n];
    }
    write(x, p.rows.find<T>(a.out, row) + d);
  });
}

template <class T, int Width>
__global__ void __launch_bounds__(kThreads) activate_backward_kernel(const __grid_constant__ Params<Activate> p) {
  const Activate& a = p.a;
  p.each<Width>([&](uint32_t row, int64_t d) {
    float x[Width], g[Width], up[Width] = {}, of_up[Width] = {}, before[Width] = {};
    const int width = a.d_out.extent.dim;
    const T* from = p.rows.find<const T>(a.x, row) + d;
    T* to = p.rows.find<T>(a.dx, row) + d;
    const bool glu = a.kind == Activation::swiglu;
    read(from, x), read(p.rows.find<const T>(a.d_out, row) + d, g);
    if (glu) read(from + width, up);
    if (a.keep != 0.f) read(to, before);
#pragma unroll
    for (int n = 0; n < Width; ++n) {
      if (glu) of_up[n] = g[n] * detail::activated(a.kind, x[n]), g[n] *= up[n];
      g[n] = g[n] * detail::slope(a.kind, x[n]) + (a.keep != 0.f ? a.keep * before[n] : 0.f);
    }
    write(g, to);
    if (!glu) return;
    if (a.keep != 0.f) {
      read(to + width, before);
#pragma unroll
      for (int n = 0; n < Width; ++n) of_up[n] += a.keep * before[n];
    }
    write(of_up, to + width);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) drop_kernel(const __grid_constant__ Params<Drop> p) {
  const int64_t* seed = static_cast<const int64_t*>(p.a.seed.data);
  p.each<1>([&](uint32_t row, int64_t d) {
    const float x = widen(p.rows.find<const T>(p.a.x, row)[d]);
    p.rows.find<T>(p.a.out, row)[d] = narrow<T>(x * detail::dropped(p.a, seed, row, d));
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) group_mean_kernel(const __grid_constant__ Params<GroupMean> p) {
  const GroupMean& a = p.a;
  const int heads = a.x.extent.head / a.out.extent.head;
  p.each<1>([&](uint32_t row, int64_t d) {
    T* out = p.rows.find<T>(a.out, row) + d;
    const uint32_t token = p.rows.heads.divide(row), group = p.rows.heads.rest(row);
    T* x = view<T>(a.x).row(p.rows.seq.divide(token), p.rows.seq.rest(token), int64_t(group) * heads) + d;
    const float spread = a.backward ? widen(*out) / float(heads) : 0.f;
    float sum = 0.f;
    for (int h = 0; h < heads; ++h, x += a.x.stride.head) {
      if (a.backward) *x = narrow<T>(spread + (a.keep != 0.f ? a.keep * widen(*x) : 0.f));
      else sum += widen(*x);
    }
    if (!a.backward) *out = narrow<T>(sum / float(heads));
  });
}

// True if all rows start at multiples of 16 bytes.
template <class... T>
bool even(const T&... tensor) {
  const auto one = [](const Tensor& t) {
    if (!t.data) return true;
    const int64_t size = size_of(t.dtype);
    const int64_t all = reinterpret_cast<intptr_t>(t.data) | t.stride.batch * size | t.stride.seq * size |
                        t.stride.head * size | t.extent.dim * size;
    return all % 16 == 0;
  };
  return (one(tensor) && ...);
}

template <class Args>
Params<Args> params(const Args& a, const Tensor& rows, int64_t vectors) {
  Params<Args> p{.a = a, .rows = Rows(rows), .vectors = Divisor(uint32_t(vectors < 1 ? 1 : vectors))};
  p.all = int64_t(p.rows.count) * vectors;
  p.splits = detail::column_splits(p.rows.count);
  return p;
}

Status too_many(const char* what, const Tensor& t) {
  const int64_t rows = int64_t(t.extent.batch) * t.extent.seq * t.extent.head;
  return rows <= INT32_MAX ? Status::good() : Status::unsupported(what, ": ", rows, " rows are over 2^31 - 1");
}

// The kernel for a dtype, with 16 bytes at once or single elements.
template <class T, int Width>
struct Moves {
  using type = T;
  static constexpr int width = Width;
};
template <class F>
auto kernel_of(DType t, bool aligned16, F f) {
  if (t == DType::f32) return aligned16 ? f(Moves<float, 4>()) : f(Moves<float, 1>());
  if (t == DType::f16) return aligned16 ? f(Moves<F16, 8>()) : f(Moves<F16, 1>());
  return aligned16 ? f(Moves<Bf16, 8>()) : f(Moves<Bf16, 1>());
}
template <class F>
auto kernel_of(DType t, F f) {
  return t == DType::f32 ? f(Moves<float, 1>()) : t == DType::f16 ? f(Moves<F16, 1>()) : f(Moves<Bf16, 1>());
}

template <class P>
Status start(void (*kernel)(P), const P& p, int64_t blocks, const Tensor& on, void* stream, const char* what) {
  if (!blocks) return Status::good();
  const DeviceGuard use(on.device_index);
  if (!use.status.ok()) return use.status.after(what, ": ");
  kernel<<<unsigned(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return last_error(what);
}

int64_t grid_of(int64_t vectors) {
  const int64_t blocks = ceil_div(vectors, kThreads);
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

Status combine_sums(const float* scratch, const Tensor& first, const Tensor& second, int sums, int splits, int width,
                 float keep, void* stream) {
  const SumParams p{scratch, {static_cast<float*>(first.data), static_cast<float*>(second.data)}, sums, splits, width,
                     keep};
  return start(combine_sums_kernel, p, ceil_div(int64_t(sums) * width, kThreads), first.data ? first : second, stream,
               "combine_sums");
}

}  // namespace

Status normalize(const Normalize& a, void* stream) {
  if (Status s = too_many("normalize", a.x); !s.ok()) return s;
  const auto p = params(a, a.x, 1);
  const auto kernel = kernel_of(a.x.dtype, even(a.x, a.out, a.weight, a.bias),
                                [](auto m) { return normalize_kernel<typename decltype(m)::type, m.width>; });
  return start(kernel, p, p.rows.count, a.x, stream, "normalize");
}

Status normalize_backward(const NormalizeBackward& a, void* stream) {
  if (Status s = too_many("normalize_backward", a.x); !s.ok()) return s;
  const auto p = params(a, a.x, 1);
  const int width = a.x.extent.dim;
  if (a.d_weight.data || a.d_bias.data) {
    const auto kernel = kernel_of(a.x.dtype, [](auto m) { return norm_sums_kernel<typename decltype(m)::type>; });
    const int64_t blocks = ceil_div(width, kColumns) * p.splits;
    if (Status s = start(kernel, p, blocks, a.x, stream, "norm_sums"); !s.ok()) return s;
    if (Status s = combine_sums(a.scratch, a.d_weight, a.d_bias, 2, p.splits, width, a.keep_sums, stream); !s.ok())
      return s;
  }
  if (!a.dx.data) return Status::good();
  const auto kernel = kernel_of(a.x.dtype, even(a.x, a.d_out, a.dx, a.weight),
                                [](auto m) { return normalize_backward_kernel<typename decltype(m)::type, m.width>; });
  return start(kernel, p, p.rows.count, a.x, stream, "normalize_backward");
}

Status column_sum(const ColumnSum& a, void* stream) {
  if (Status s = too_many("column_sum", a.x); !s.ok()) return s;
  const auto p = params(a, a.x, 1);
  const int width = a.x.extent.dim;
  const auto kernel = kernel_of(a.x.dtype, [](auto m) { return column_sum_kernel<typename decltype(m)::type>; });
  if (Status s = start(kernel, p, ceil_div(width, kColumns) * p.splits, a.x, stream, "column_sum"); !s.ok()) return s;
  return combine_sums(a.scratch, a.sum, {}, 1, p.splits, width, a.keep, stream);
}

Status rotate(const Rotate& a, void* stream) {
  if (Status s = too_many("rotate", a.x); !s.ok()) return s;
  const int rotated = a.cos.extent.dim, vec = 16 / size_of(a.x.dtype);
  // Tables are read in vectors of as many numbers, and the second half must start at a vector too.
  const bool aligned16 = even(a.x) && rotated % vec == 0 && even(a.cos, a.sin);
  const int pairs = !aligned16 ? 1 : a.halves ? vec : vec / 2;
  const auto p = params(a, a.x, rotated / pairs);
  const auto halves = [](auto m) { return rotate_halves_kernel<typename decltype(m)::type, m.width>; };
  const auto side_by_side = [](auto m) { return rotate_pairs_kernel<typename decltype(m)::type, m.width>; };
  const auto kernel =
      a.halves ? kernel_of(a.x.dtype, aligned16, halves) : kernel_of(a.x.dtype, aligned16, side_by_side);
  return start(kernel, p, grid_of(p.all), a.x, stream, "rotate");
}

Status activate(const Activate& a, void* stream) {
  if (Status s = too_many("activate", a.out); !s.ok()) return s;
  const bool aligned16 = even(a.x, a.out);
  const auto p = params(a, a.out, a.out.extent.dim / (aligned16 ? 16 / size_of(a.x.dtype) : 1));
  const auto kernel =
      kernel_of(a.x.dtype, aligned16, [](auto m) { return activate_kernel<typename decltype(m)::type, m.width>; });
  return start(kernel, p, grid_of(p.all), a.x, stream, "activate");
}

Status activate_backward(const Activate& a, void* stream) {
  if (Status s = too_many("activate_backward", a.d_out); !s.ok()) return s;
  const bool aligned16 = even(a.x, a.d_out, a.dx);
  const auto p = params(a, a.d_out, a.d_out.extent.dim / (aligned16 ? 16 / size_of(a.x.dtype) : 1));
  const auto kernel = kernel_of(a.x.dtype, aligned16,
                                [](auto m) { return activate_backward_kernel<typename decltype(m)::type, m.width>; });
  return start(kernel, p, grid_of(p.all), a.x, stream, "activate_backward");
}

Status drop(const Drop& a, void* stream) {
  if (Status s = too_many("drop", a.x); !s.ok()) return s;
  const auto p = params(a, a.x, a.x.extent.dim);
  return start(kernel_of(a.x.dtype, [](auto m) { return drop_kernel<typename decltype(m)::type>; }), p, grid_of(p.all),
               a.x, stream, "drop");
}

Status group_mean(const GroupMean& a, void* stream) {
  if (Status s = too_many("group_mean", a.out); !s.ok()) return s;
  const auto p = params(a, a.out, a.out.extent.dim);
  const auto kernel = kernel_of(a.x.dtype, [](auto m) { return group_mean_kernel<typename decltype(m)::type>; });
  return start(kernel, p, grid_of(p.all), a.x, stream, "group_mean");
}

}  // namespace attune::cuda
