// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory without registers: cp.async, 16 bytes per thread.
#pragma once
#include <cstdint>

namespace attune::sm80 {

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Copies 16 bytes, or writes 16 zeros without reading if `there` is false.
__device__ inline void copy16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ inline void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void copy8(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(there ? 8 : 0) : "memory");
}

// Copies since the last close form a group; wait_groups<N> returns when all but the N latest groups have landed. A
// barrier then makes them visible to other threads.
__device__ inline void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

}  // namespace attune::sm80
