// Two kernels in a row of which the second starts early: programmatic dependent launch, from sm_90 on. Before it these
// are empty, and the second kernel is launched in plain order (launch.h, Launch::early).
#pragma once

namespace attune::sm80 {

// Whether the code that runs on this GPU is that of sm_90 or later: this build's own, or PTX of it.
constexpr bool starts_early(int arch) {
  for (const int built : {__CUDA_ARCH_LIST__})
    if (built >= 900 && built / 10 <= arch) return true;
  return false;
}

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
