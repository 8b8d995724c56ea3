// Barriers in shared memory that count arrivals: some warps fill a buffer, others empty it, and none waits for more
// than the buffer it needs.
#pragma once
#include "machine/sm80/cp_async.h"

namespace attune::sm80 {

using Barrier = uint64_t;  // in shared memory

// By one thread; the other threads see it after a __syncthreads.
__device__ inline void start_barrier(Barrier* b, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

// What the thread wrote and read before is done for those who wait.
__device__ inline void arrive(Barrier* b) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(b)) : "memory");
}

// Arrives once all copies that this thread has begun have landed.
__device__ inline void arrive_with_copies(Barrier* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// Until the phase of this parity has ended: 0 is the first, and parities alternate.
__device__ inline void wait(Barrier* b, uint32_t parity) {
  uint32_t done;
  do {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
#else
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
#endif
                 : "=r"(done)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
  } while (!done);
}

}  // namespace attune::sm80
