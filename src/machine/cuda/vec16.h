// SPDX-License-Identifier: Apache-2.0
// Vectors: a few adjacent elements of a row at once, of any floating dtype. For memory-bound kernels that switch on the
// dtype at run time, uniformly over a launch.
#pragma once
#include <bit>
#include <type_traits>

#include "core/tensor.h"

namespace attune::cuda {

template <class T, int Width>
struct alignas(sizeof(T) * Width) Vector { T x[Width]; };

// A load or a store covers at most 16 bytes.
template <class T>
constexpr int vector_width(int width) {
  return width * int(sizeof(T)) <= 16 ? width : 16 / int(sizeof(T));
}

// One instruction where the GPU has it: the code of core/number.h takes fifteen, and f16 is common.
template <class Real, class T>
__device__ inline Real widen(T x) {
  if constexpr (std::is_same_v<T, F16>) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return Real(y);
  } else {
    return Real(x);
  }
}
template <class T, class Real>
__device__ inline T narrow(Real x) {
  if constexpr (sizeof(T) == 8) {
    return T(x);
  } else if constexpr (std::is_same_v<T, F16>) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(float(x)));
    return std::bit_cast<F16>(bits);
  } else {
    return T(float(x));
  }
}

// A vector of a dtype fixed at compile time. Several loads can be in flight, which a run-time switch on the dtype
// prevents.
template <class T, int Width, class Real>
__device__ inline void read_as(const char* at, Real (&to)[Width]) {
  constexpr int kEach = vector_width<T>(Width);
#pragma unroll
  for (int n = 0; n < Width; n += kEach) {
    const Vector<T, kEach> p = *reinterpret_cast<const Vector<T, kEach>*>(at + n * int(sizeof(T)));
#pragma unroll
    for (int e = 0; e < kEach; ++e) to[n + e] = widen<Real>(p.x[e]);
  }
}
template <class T, int Width, class Real>
__device__ inline void write_as(const Real (&from)[Width], char* at) {
  constexpr int kEach = vector_width<T>(Width);
#pragma unroll
  for (int n = 0; n < Width; n += kEach) {
    Vector<T, kEach> p;
#pragma unroll
    for (int e = 0; e < kEach; ++e) p.x[e] = narrow<T>(from[n + e]);
    *reinterpret_cast<Vector<T, kEach>*>(at + n * int(sizeof(T))) = p;
  }
}

template <int Width, class Real>
__device__ inline void read(const char* at, DType dtype, Real (&to)[Width]) {
  switch (dtype) {
    case DType::f64: return read_as<double>(at, to);
    case DType::f32: return read_as<float>(at, to);
    case DType::f16: return read_as<F16>(at, to);
    case DType::bf16: return read_as<Bf16>(at, to);
    default: return read_as<E4m3>(at, to);
  }
}
template <int Width, class Real>
__device__ inline void write(const Real (&from)[Width], DType dtype, char* at) {
  switch (dtype) {
    case DType::f64: return write_as<double>(from, at);
    case DType::f32: return write_as<float>(from, at);
    case DType::f16: return write_as<F16>(from, at);
    case DType::bf16: return write_as<Bf16>(from, at);
    default: return write_as<E4m3>(from, at);
  }
}
// The same for kernels with a compile-time type, or void for a run-time dtype.
template <class T, int Width>
__device__ inline void load_vector(const char* at, DType dtype, float (&to)[Width]) {
  if constexpr (std::is_void_v<T>) read(at, dtype, to);
  else read_as<T>(at, to);
}

// True if every vector of `width` elements of every row starts at a multiple of its own size, or of 16 bytes.
inline bool allows_vectors(const Tensor& t, int width) {
  const auto whole = [&](int64_t n) { return n % width == 0; };
  const int64_t bytes = int64_t(width) * size_of(t.dtype);
  return whole(t.extent.dim) && whole(t.stride.batch) && whole(t.stride.seq) && whole(t.stride.head) &&
         reinterpret_cast<uintptr_t>(t.data) % uintptr_t(bytes < 16 ? bytes : 16) == 0;
}

}  // namespace attune::cuda
