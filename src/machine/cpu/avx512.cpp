// SPDX-License-Identifier: Apache-2.0
// x86 AVX-512; arithmetic is f32 for every stored dtype.
#include "machine/cpu/avx512.h"

namespace attune {
namespace {

using Kernels = x86::Float32<Avx512>;

}  // namespace

const CpuKernels kAvx512Kernels[3] = {Kernels::kernels<float>("avx512", Feature::avx512, DType::f32),
                                      Kernels::kernels<F16>("avx512", Feature::avx512, DType::f16),
                                      Kernels::kernels<Bf16>("avx512", Feature::avx512, DType::bf16)};

}  // namespace attune
