// x86 AVX-512 with f32 arithmetic, whatever is stored.
#include "machine/cpu/avx512.h"

namespace attune {
namespace {

using Kernels = x86::Float32<Avx512>;

}  // namespace

const CpuKernels kAvx512Kernels[3] = {Kernels::kernels<float>("avx512", Feature::avx512, DType::f32),
                                      Kernels::kernels<F16>("avx512", Feature::avx512, DType::f16),
                                      Kernels::kernels<Bf16>("avx512", Feature::avx512, DType::bf16)};

}  // namespace attune
