// SPDX-License-Identifier: Apache-2.0
#include "machine/cpu/kernels.h"

#include <cstring>
#include <span>

namespace attune {
namespace {

// Best first.
#if defined(__aarch64__)
constexpr std::span<const CpuKernels> kAll[] = {kNeonBf16Kernels, kNeonKernels, kScalarKernels};
#elif defined(__x86_64__)
constexpr std::span<const CpuKernels> kAll[] = {kAmxKernels, kAvx512Bf16Kernels, kAvx512Kernels, kAvx2Kernels,
                                               kScalarKernels};
#else
constexpr std::span<const CpuKernels> kAll[] = {kScalarKernels};
#endif

}  // namespace

const CpuKernels* best_kernels(DType dtype, uint32_t features) {
  for (const auto& machine : kAll)
    for (const CpuKernels& k : machine)
      if (k.dtype == dtype && (k.needs & ~features) == 0) return &k;
  return nullptr;
}

const CpuKernels* smaller_panels(const CpuKernels& m) {
  for (const auto& machine : kAll)
    for (const CpuKernels& k : machine)
      if (k.dtype == m.dtype && k.rows < m.rows && std::strcmp(k.isa, m.isa) == 0) return &k;
  return nullptr;
}

}  // namespace attune
