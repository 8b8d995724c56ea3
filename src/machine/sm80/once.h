// copy16 (copy.h) of what is read once: it is the first to leave the second-level cache again, and what lies there stays.
#pragma once
#include <cstdint>

namespace attune::sm80 {

__device__ inline uint64_t read_once() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline void copy16(uint32_t to, const void* from, bool there, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0), "l"(policy)
               : "memory");
}

}  // namespace attune::sm80
