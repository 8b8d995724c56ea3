// SPDX-License-Identifier: Apache-2.0
// TMA tensor maps for Hopper, for .cu files. The driver builds them on the host; nothing on the GPU is touched.
#pragma once
#include <cuda.h>

#include "core/args.h"

namespace attune::cuda {

// Good if the tensor can be mapped; otherwise the refusal of `who`. Does not use the driver. An axis of extent 1 may
// have any stride.
Status mappable(std::string_view who, Role, const Tensor&);

// Tiles of `rows` rows and 64 columns of 16-bit numbers with the 128-byte swizzle, for `heads` heads one after another.
// Axes: column, row, head, batch. A tile that extends past the end of an axis reads zeros there and writes nothing.
// Data and strides are multiples of 16 bytes.
Status tensor_map(const Tensor&, int rows, CUtensorMap& out, int heads = 1);

// `count` f32 numbers at a time from a line of `columns`, without swizzle. Axes: column, row, batch, 0.
Status line_map(const float* data, int64_t columns, int rows, int batch, int count, CUtensorMap& out);

}  // namespace attune::cuda
