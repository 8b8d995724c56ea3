// SPDX-License-Identifier: Apache-2.0
// The CUDA built-ins that the kernels use.
#pragma once
#include "tests/emulated/gpu.h"

namespace attune::emulated {

struct Index { unsigned x; };
template <class T>
uint32_t bits_of(T x) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<uint32_t>(x);
}

}  // namespace attune::emulated

#define threadIdx (attune::emulated::Index{attune::emulated::gpu.now->number})
#define blockIdx (attune::emulated::Index{attune::emulated::gpu.now->block->number})
#define gridDim (attune::emulated::Index{attune::emulated::gpu.blocks})

template <class A, class B>
constexpr auto min(A a, B b) { return std::min<std::common_type_t<A, B>>(a, b); }
template <class A, class B>
constexpr auto max(A a, B b) { return std::max<std::common_type_t<A, B>>(a, b); }
template <class T>
T __shfl_sync(unsigned, T x, int from) {
  const uint32_t mine = attune::emulated::bits_of(x);
  return std::bit_cast<T>(attune::emulated::tell(&mine, 1)[from][0]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int by) { return __shfl_sync(mask, x, attune::emulated::lane() ^ by); }
inline bool __any_sync(unsigned, bool x) {
  const uint32_t mine = x;
  const auto said = attune::emulated::tell(&mine, 1);
  return std::any_of(said, said + 32, [](const uint32_t* one) { return one[0]; });
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __reduce_or_sync(unsigned, unsigned x) {
  unsigned all = 0;
  const auto said = attune::emulated::tell(&x, 1);
  for (int n = 0; n < 32; ++n) all |= said[n][0];
  return all;
}
inline unsigned __ballot_sync(unsigned mask, bool said) {
  return __reduce_or_sync(mask, said ? 1u << attune::emulated::lane() : 0);
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void __syncwarp() { attune::emulated::tell(nullptr, 0); }
inline void __syncthreads() {
  attune::emulated::Block& block = *attune::emulated::gpu.now->block;
  attune::emulated::meet_named(0, block.threads, "its block");
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline float __fmul_rd(float a, float b) {
  const double exact = double(a) * b;
  const float near = float(exact);
  return double(near) > exact ? std::nextafter(near, -INFINITY) : near;
}
inline float __fdividef(float a, float b) { return a / b; }
namespace attune::emulated { inline float log2_of(float x) { return std::log2(x); } }
#define __log2f attune::emulated::log2_of  // glibc has a function of that name
template <class T>
T __ldcg(const T* from) { return *from; }
inline void* __cvta_shared_to_generic(uint32_t address) { return attune::emulated::shared(address); }
inline unsigned long long atomicAdd(unsigned long long* to, int more) {
  attune::emulated::pause();
  ++attune::emulated::gpu.events;
  const unsigned long long was = *to;
  *to += unsigned(more);
  return was;
}
template <class T>
T atomicAdd(T* to, T more) { return std::exchange(*to, *to + more); }
inline unsigned long long atomicCAS(unsigned long long* to, unsigned long long if_this, unsigned long long then) {
  const unsigned long long was = *to;
  if (was == if_this) *to = then;
  return was;
}
