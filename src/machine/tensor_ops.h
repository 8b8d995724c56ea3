// Loops over whole tensors, on the device where they lie: what variants and modules need between two attentions. Any
// strides and any floating dtypes; sums are f32, or f64 where one of the tensors is. `from` may have extent 1 along
// batch, seq or head and is then broadcast; `to` says how much there is to do. On a GPU they are launches on `stream`
// and wait for nothing; in a build without CUDA they refuse there. Tensors are the caller's to check: what is refused
// here is a mistake in a composition.
#pragma once
#include "core/status.h"
#include "core/tensor.h"

namespace attune {

Status fill(const Tensor& to, float value, void* stream);
Status convert(const Tensor& from, const Tensor& to, void* stream);  // to = from, rounded once
Status add(const Tensor& from, const Tensor& to, void* stream);      // to += from
// to = factor * from + keep * to. What has the factor 0 is not read: `to` may be uninitialised. `from` may be `to`.
Status scale_add(const Tensor& from, float factor, const Tensor& to, float keep, void* stream);

// Takes one more part into a running result: softmax.h's merge, row by row. out_part has any floating dtype, out is
// f32, and both lse are f32 with one value a row, natural. A side whose lse is -inf is not read. Without memory for out
// only lse is merged.
Status merge(const Tensor& out_part, const Tensor& lse_part, const Tensor& out, const Tensor& lse, void* stream);

namespace detail {

// to = constant + factor * from + keep * to
struct Combine {
  Tensor from{}, to{};
  float constant = 0.f, factor = 0.f, keep = 0.f;
};
struct Merge { Tensor out_part, lse_part, out, lse; };

}  // namespace detail

namespace cuda {

Status combine(const detail::Combine&, void* stream);
Status merge(const detail::Merge&, void* stream);

}  // namespace cuda
}  // namespace attune
