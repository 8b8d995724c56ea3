// SPDX-License-Identifier: Apache-2.0
// mbarriers in shared memory: producer warps fill a buffer, consumer warps empty it, and each waits only for the buffer
// it needs.
#pragma once
#include "machine/sm80/cp_async.h"

namespace attune::sm80 {

using Barrier = uint64_t;  // in shared memory

// Called by one thread; other threads see the barrier after a __syncthreads.
__device__ inline void start_barrier(Barrier* b, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

// Completes this thread's earlier reads and writes for the waiting threads.
__device__ inline void arrive(Barrier* b) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(b)) : "memory");
}

// Arrives once all copies that this thread has issued have landed.
__device__ inline void arrive_with_copies(Barrier* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// Waits until the phase of this parity has ended: the first has parity 0, and parities alternate.
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
