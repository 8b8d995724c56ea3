// Maps of tensors for Hopper's copies of whole tiles: for .cu files. The driver makes them on the host; nothing is
// touched on the GPU.
#pragma once
#include <cuda.h>

#include "core/args.h"

namespace attune::cuda {

// Whether there is a map of it: `who`'s refusal, made without the driver. Of an axis of extent 1 any stride will do.
Status mappable(std::string_view who, Role, const Tensor&);

// Tiles of `rows` rows and 64 columns of 16-bit numbers, swizzled by 128 bytes; of `heads` heads one behind the other.
// Axes: column, row, head, batch; a tile that reaches past the end of one reads zeros there and writes nothing. Data
// and strides are multiples of 16 bytes.
Status tensor_map(const Tensor&, int rows, CUtensorMap& out, int heads = 1);

// `count` f32 numbers at a time of a line of `columns`, as they lie. Axes: column, row, batch, 0.
Status line_map(const float* data, int64_t columns, int rows, int batch, int count, CUtensorMap& out);

}  // namespace attune::cuda
