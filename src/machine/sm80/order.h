// Two kernels in a row of which the second starts early: programmatic dependent launch, from sm_90 on. Before it these
// are empty, and the second kernel is launched in plain order (launch.h, Launch::early).
#pragma once

namespace attune::sm80 {

// The next kernel of the stream may take what room this one leaves.
__device__ inline void admit_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the kernel before has ended and its writes are seen.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attune::sm80
