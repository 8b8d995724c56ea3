// SPDX-License-Identifier: Apache-2.0
// Two predicates on dtypes: whether a numeric tensor may have it, and whether kernels multiply it.
#pragma once
#include "core/number.h"

namespace attune {

// f64, f32, f16, bf16 or e4m3.
constexpr bool is_floating(DType t) { return t >= DType::f64 && t <= DType::e4m3; }

// f32, f16 or bf16: the dtypes that kernels on every machine multiply.
constexpr bool is_f32_or_half(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

}  // namespace attune
