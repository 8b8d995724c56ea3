// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch, from sm_90 on: the second of two kernels starts early. On earlier GPUs these functions
// are empty, and the second kernel is launched in plain order (cuda/launch.h, Launch::dependent).
#pragma once

namespace attune::sm80 {

// True if this GPU runs code for sm_90 or later: native code of this build, or its PTX.
constexpr bool supports_dependent_launch(int arch) {
  for (const int built : {__CUDA_ARCH_LIST__})
    if (built >= 900 && built / 10 <= arch) return true;
  return false;
}

// Lets the next kernel of the stream use the resources that this one leaves free.
__device__ inline void admit_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous kernel has ended and its writes are visible.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attune::sm80
