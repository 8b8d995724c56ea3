// SPDX-License-Identifier: Apache-2.0
// Batched small copies on the device of the tensors: new tokens into the streams of a cache. From and to have the same
// extents and dtype, and any strides. On a GPU, one launch on `stream` handles up to 40 copies and waits for nothing; a
// build without CUDA refuses GPU tensors.
#pragma once
#include <span>

#include "core/status.h"
#include "core/tensor.h"

namespace attune {

struct Copy { Tensor from{}, to{}; };

Status copy_all(std::span<const Copy>, void* stream);

namespace cuda {

Status copy_all(std::span<const Copy>, void* stream);

}  // namespace cuda
}  // namespace attune
