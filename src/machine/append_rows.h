// Many small copies at once, on the device where the tensors lie: new tokens into the streams of a cache. From and to
// have the same extents and dtype, and any strides. On a GPU it is a launch for some fifty of them, on `stream`, which
// waits for nothing; in a build without CUDA it refuses there.
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
