#include "machine/cpu/kernels.h"

#include <cstring>
#include <span>

#include "core/mask.h"

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

constexpr double kSmallPanel = 1.05;  // what a row costs in a smaller panel

}  // namespace

const CpuKernels* best_kernels(DType dtype, uint32_t features) {
  for (const auto& machine : kAll)
    for (const CpuKernels& k : machine)
      if (k.dtype == dtype && (k.needs & ~features) == 0) return &k;
  return nullptr;
}

const CpuKernels* best_kernels(DType dtype, uint32_t features, int rows) {
  const CpuKernels* best = best_kernels(dtype, features);
  const auto cost = [&](const CpuKernels& k) { return round_up(rows, k.rows) * (&k == best ? 1. : kSmallPanel); };
  const CpuKernels* chosen = best;
  for (const auto& machine : kAll)
    for (const CpuKernels& k : machine)
      if (best && k.dtype == dtype && std::strcmp(k.isa, best->isa) == 0 && cost(k) < cost(*chosen)) chosen = &k;
  return chosen;
}

}  // namespace attune
