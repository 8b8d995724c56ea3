// SPDX-License-Identifier: Apache-2.0
// WGMMA: d[64 x N] (+)= a[64 x 16] b[16 x N], 16-bit operands, f32 sums in registers. The instruction names every
// register, so each N has its own text, which macros assemble.
//   shared        a [64 rows, k contiguous] and b [N rows, k contiguous] in shared memory
//   registers     a in registers, four pairs per lane; b [16 rows of k, N contiguous] in shared memory
//   by_rows       a in registers too; b [N rows, k contiguous] in shared memory
//   transposed    a [16 rows of k, 64 contiguous] and b [16 rows of k, N contiguous] in shared memory
//   transposed_a  a [16 rows of k, 64 contiguous] and b [N rows, k contiguous] in shared memory
// Lane l of warp w holds rows 16 w + l / 4 (d[4 n], d[4 n + 1]) and 8 below (d[4 n + 2], d[4 n + 3]), columns 8 n + 2
// (l % 4) and the next.
#pragma once
#include "core/number.h"

namespace attune::sm90 {

// Descriptor of a tile in shared memory: panels of 64 columns, rows 128 bytes apart, 128-byte swizzle. `panel`: bytes
// between panels, if the columns are the N side. This is the low word. The high word is always 0x40000040: that
// swizzle, and eight rows in 1024 bytes. Adding 1 advances the address by 16 bytes.
__device__ inline uint32_t operand(uint32_t address, uint32_t panel) {
  return (address & 0x3FFFF) >> 4 | panel >> 4 << 16;
}
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `Pending` groups are in flight.
template <int Pending>
__device__ inline void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory"); }
// Keeps the compiler from moving uses of these registers across this point. Call it after every wait, before reading
// the results.
template <int N>
__device__ inline void pin(float (&d)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("" : "+f"(d[n])::"memory");
}

// Copies an input of later products. A plain copy is moved by the compiler past the start of the products, which
// serializes all of them (ptxas 13.0, C7513).
template <int N>
__device__ inline void move(uint32_t (&to)[N], const uint32_t (&from)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("mov.b32 %0, %1;" : "=r"(to[n]) : "r"(from[n]));
}

// Makes values that depend on x per-thread rather than warp-uniform: ptxas then places products differently.
__device__ inline void own_register(int& x) { asm volatile("" : "+r"(x)); }

// Marks these registers as dead. Call it before products that start from zero; otherwise the compiler preserves the
// contents.
template <int N>
__device__ inline void forget(float (&d)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("" : "=f"(d[n]));
}

template <class T, int N>
struct Product;

// The registers of d: their names in the instruction's text, and the operands.
#define ATTUNE_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTUNE_NAMES_80 ATTUNE_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTUNE_NAMES_96 \
  ATTUNE_NAMES_64 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTUNE_NAMES_128 \
  ATTUNE_NAMES_96 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTUNE_NAMES_192 \
  ATTUNE_NAMES_128 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTUNE_NAMES_256 \
  ATTUNE_NAMES_192 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ATTUNE_SUMS_4(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3])
#define ATTUNE_SUMS_16(n) ATTUNE_SUMS_4(n), ATTUNE_SUMS_4(n + 4), ATTUNE_SUMS_4(n + 8), ATTUNE_SUMS_4(n + 12)
#define ATTUNE_SUMS_OF_64 ATTUNE_SUMS_16(0), ATTUNE_SUMS_16(16)
#define ATTUNE_SUMS_OF_80 ATTUNE_SUMS_OF_64, ATTUNE_SUMS_4(32), ATTUNE_SUMS_4(36)
#define ATTUNE_SUMS_OF_96 ATTUNE_SUMS_OF_64, ATTUNE_SUMS_16(32)
#define ATTUNE_SUMS_OF_128 ATTUNE_SUMS_OF_96, ATTUNE_SUMS_16(48)
#define ATTUNE_SUMS_OF_192 ATTUNE_SUMS_OF_128, ATTUNE_SUMS_16(64), ATTUNE_SUMS_16(80)
#define ATTUNE_SUMS_OF_256 ATTUNE_SUMS_OF_192, ATTUNE_SUMS_16(96), ATTUNE_SUMS_16(112)
// i0, i1, ...: numbers of the operands that follow those of d.
#define ATTUNE_PRODUCT_SHARED(name, type, N, i0, i1, i2, majors) \
  static __device__ void name(float (&d)[N / 2], uint32_t a, uint32_t b, int add) { \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" #i2 ", 0;\n" \
                 "mov.b64 a, {%" #i0 ", 0x40000040};\nmov.b64 b, {%" #i1 ", 0x40000040};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type " {" ATTUNE_NAMES_##N \
                 "}, a, b, p, 1, 1, " majors ";\n}\n" \
                 : ATTUNE_SUMS_OF_##N \
                 : "r"(a), "r"(b), "r"(add)); \
  }
#define ATTUNE_PRODUCT_REGISTERS(name, type, N, i0, i1, i2, i3, i4, i5, major) \
  static __device__ void name(float (&d)[N / 2], const uint32_t* a, uint32_t b, int add) { \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #i5 ", 0;\n" \
                 "mov.b64 b, {%" #i4 ", 0x40000040};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type " {" ATTUNE_NAMES_##N \
                 "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, b, p, 1, 1, " major ";\n}\n" \
                 : ATTUNE_SUMS_OF_##N \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add)); \
  }
#define ATTUNE_PRODUCT(T, type, N, i0, i1, i2, i3, i4, i5) \
  template <> \
  struct Product<T, N> { \
    ATTUNE_PRODUCT_SHARED(shared, type, N, i0, i1, i2, "0, 0") \
    ATTUNE_PRODUCT_SHARED(transposed, type, N, i0, i1, i2, "1, 1") \
    ATTUNE_PRODUCT_SHARED(transposed_a, type, N, i0, i1, i2, "1, 0") \
    ATTUNE_PRODUCT_REGISTERS(registers, type, N, i0, i1, i2, i3, i4, i5, "1") \
    ATTUNE_PRODUCT_REGISTERS(by_rows, type, N, i0, i1, i2, i3, i4, i5, "0") \
  };
ATTUNE_PRODUCT(Bf16, "bf16.bf16", 64, 32, 33, 34, 35, 36, 37)
ATTUNE_PRODUCT(Bf16, "bf16.bf16", 80, 40, 41, 42, 43, 44, 45)
ATTUNE_PRODUCT(Bf16, "bf16.bf16", 96, 48, 49, 50, 51, 52, 53)
ATTUNE_PRODUCT(Bf16, "bf16.bf16", 128, 64, 65, 66, 67, 68, 69)
ATTUNE_PRODUCT(Bf16, "bf16.bf16", 192, 96, 97, 98, 99, 100, 101)
ATTUNE_PRODUCT(Bf16, "bf16.bf16", 256, 128, 129, 130, 131, 132, 133)
ATTUNE_PRODUCT(F16, "f16.f16", 64, 32, 33, 34, 35, 36, 37)
ATTUNE_PRODUCT(F16, "f16.f16", 80, 40, 41, 42, 43, 44, 45)
ATTUNE_PRODUCT(F16, "f16.f16", 96, 48, 49, 50, 51, 52, 53)
ATTUNE_PRODUCT(F16, "f16.f16", 128, 64, 65, 66, 67, 68, 69)
ATTUNE_PRODUCT(F16, "f16.f16", 192, 96, 97, 98, 99, 100, 101)
ATTUNE_PRODUCT(F16, "f16.f16", 256, 128, 129, 130, 131, 132, 133)

#undef ATTUNE_PRODUCT
#undef ATTUNE_PRODUCT_REGISTERS
#undef ATTUNE_PRODUCT_SHARED
#undef ATTUNE_SUMS_OF_256
#undef ATTUNE_SUMS_OF_192
#undef ATTUNE_SUMS_OF_128
#undef ATTUNE_SUMS_OF_96
#undef ATTUNE_SUMS_OF_80
#undef ATTUNE_SUMS_OF_64
#undef ATTUNE_SUMS_16
#undef ATTUNE_SUMS_4
#undef ATTUNE_NAMES_256
#undef ATTUNE_NAMES_192
#undef ATTUNE_NAMES_128
#undef ATTUNE_NAMES_96
#undef ATTUNE_NAMES_80
#undef ATTUNE_NAMES_64

}  // namespace attune::sm90
