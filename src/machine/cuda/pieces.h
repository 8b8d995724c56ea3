// A few neighbours of a row at once, of any floating dtype: for kernels that memory bounds and that ask for the dtype at
// run time, the same for all threads of a launch.
#pragma once
#include <cuda_fp16.h>

#include <bit>
#include <type_traits>

#include "core/tensor.h"

namespace attune::cuda {

template <class T, int Width>
struct alignas(sizeof(T) * Width) Piece { T x[Width]; };

// A load or a store has at most 16 bytes.
template <class T>
constexpr int pieces_of(int width) {
  return width * int(sizeof(T)) <= 16 ? width : 16 / int(sizeof(T));
}

// In one instruction where the GPU has it: number.h's way takes fifteen, and f16 is common.
template <class Real, class T>
__device__ inline Real widen(T x) {
  if constexpr (std::is_same_v<T, F16>) return Real(__half2float(__ushort_as_half(x.bits)));
  else return Real(x);
}
template <class T, class Real>
__device__ inline T narrow(Real x) {
  if constexpr (sizeof(T) == 8) return T(x);
  else if constexpr (std::is_same_v<T, F16>) return std::bit_cast<F16>(__half_as_ushort(__float2half_rn(float(x))));
  else return T(float(x));
}

template <int Width, class Real>
__device__ inline void read(const char* at, DType dtype, Real (&to)[Width]) {
  const auto copy = [&]<class T>(const T*) {
    constexpr int kEach = pieces_of<T>(Width);
#pragma unroll
    for (int n = 0; n < Width; n += kEach) {
      const Piece<T, kEach> p = *reinterpret_cast<const Piece<T, kEach>*>(at + n * int(sizeof(T)));
#pragma unroll
      for (int e = 0; e < kEach; ++e) to[n + e] = widen<Real>(p.x[e]);
    }
  };
  switch (dtype) {
    case DType::f64: return copy(static_cast<const double*>(nullptr));
    case DType::f32: return copy(static_cast<const float*>(nullptr));
    case DType::f16: return copy(static_cast<const F16*>(nullptr));
    case DType::bf16: return copy(static_cast<const Bf16*>(nullptr));
    default: return copy(static_cast<const E4m3*>(nullptr));
  }
}

template <int Width, class Real>
__device__ inline void write(const Real (&from)[Width], DType dtype, char* at) {
  const auto copy = [&]<class T>(T*) {
    constexpr int kEach = pieces_of<T>(Width);
#pragma unroll
    for (int n = 0; n < Width; n += kEach) {
      Piece<T, kEach> p;
#pragma unroll
      for (int e = 0; e < kEach; ++e) p.x[e] = narrow<T>(from[n + e]);
      *reinterpret_cast<Piece<T, kEach>*>(at + n * int(sizeof(T))) = p;
    }
  };
  switch (dtype) {
    case DType::f64: return copy(static_cast<double*>(nullptr));
    case DType::f32: return copy(static_cast<float*>(nullptr));
    case DType::f16: return copy(static_cast<F16*>(nullptr));
    case DType::bf16: return copy(static_cast<Bf16*>(nullptr));
    default: return copy(static_cast<E4m3*>(nullptr));
  }
}

// Whether every piece of `width` elements of every row begins at a multiple of its own size, or of 16 bytes.
inline bool has_pieces(const Tensor& t, int width) {
  const auto whole = [&](int64_t n) { return n % width == 0; };
  const int64_t bytes = int64_t(width) * size_of(t.dtype);
  return whole(t.extent.dim) && whole(t.stride.batch) && whole(t.stride.seq) && whole(t.stride.head) &&
         reinterpret_cast<uintptr_t>(t.data) % uintptr_t(bytes < 16 ? bytes : 16) == 0;
}

}  // namespace attune::cuda
