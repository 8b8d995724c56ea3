// SPDX-License-Identifier: Apache-2.0
// Loops over whole tensors on the device of the tensors, for variants and modules between two attention calls. Any
// strides and any floating dtypes; sums are f32, or f64 if one of the tensors is. `from` may have extent 1 along batch,
// seq or head and is then broadcast; `to` determines the extents. On a GPU they are launches on `stream` that wait for
// nothing; a build without CUDA refuses GPU tensors. Callers check their tensors: a refusal here is a bug in a
// composition.
#pragma once
#include "core/status.h"
#include "core/tensor.h"

namespace attune {

Status fill(const Tensor& to, float value, void* stream);
Status convert(const Tensor& from, const Tensor& to, void* stream);  // to = from, rounded once
Status add(const Tensor& from, const Tensor& to, void* stream);      // to += from
// to = factor * from + keep * to. An operand with factor 0 is not read: `to` may be uninitialized. `from` may be `to`.
Status scale_add(const Tensor& from, float factor, const Tensor& to, float keep, void* stream);

// Merges one more partial result into a running one, row by row (merge of core/softmax.h). partial_out has any floating
// dtype, out is f32, and both lse are f32 with one value per row, base e. A side whose lse is -inf is not read. Without
// memory for out only lse is merged.
Status merge(const Tensor& partial_out, const Tensor& partial_lse, const Tensor& out, const Tensor& lse, void* stream);

namespace detail {

// to = constant + factor * from + keep * to
struct Combine {
  Tensor from{}, to{};
  float constant = 0.f, factor = 0.f, keep = 0.f;
};
struct Merge { Tensor partial_out, partial_lse, out, lse; };

}  // namespace detail

namespace cuda {

Status combine(const detail::Combine&, void* stream);
Status merge(const detail::Merge&, void* stream);

}  // namespace cuda
}  // namespace attune
